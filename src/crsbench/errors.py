"""The one exception for mistakes that a user can mend."""


class UserError(Exception):
    """A problem in the user's input, told in one sentence.

    The sentence names the file, key, encoder or image, the value found and what is allowed.
    The workflow prints it without a traceback; anything else that is raised is a defect of ours.
    """
