"""The exception to catch for those who use the library from Python."""

from crsbench.core.errors import UserError

__all__ = ["UserError"]
