"""Look through the files of the repository for words that docs/wordlist.yaml replaces.

    python tools/wordlist.py [FILE ...]

Without files it looks through all that git tracks. It prints each place with what to write instead
and exits with 1 when there is one, or when an exception of the list is not needed any more.
"""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import yaml

HOME = Path(__file__).resolve().parents[1]
LIST = "docs/wordlist.yaml"


def pattern(words: str) -> re.Pattern[str]:
    """Whole words in any case, also as parts of snake_case names and across the end of a line."""
    return re.compile(
        rf"(?<![a-z])(?:{words})(?![a-z])".replace(" ", r"[\s#]+"), re.IGNORECASE | re.ASCII
    )


def places(text: str, words: str) -> list[tuple[int, str]]:
    """Line number (from 1) and found text of each place; CamelCase is looked at by its parts."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text)
    return [
        (parts.count("\n", 0, found.start()) + 1, " ".join(found[0].split()))
        for found in pattern(words).finditer(parts)
    ]


def main(files: list[str]) -> int:
    content = yaml.safe_load((HOME / LIST).read_text("utf-8"))
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=HOME, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    chosen = [name for name in tracked if name and name != LIST and (HOME / name).is_file()]
    if files:
        asked = {Path(file).resolve() for file in files}
        chosen = [name for name in chosen if HOME / name in asked]
    wrong, needed = [], set()
    for name in chosen:
        text = (HOME / name).read_text("utf-8")
        for number, allowed in enumerate(content["allowed"]):
            if fnmatch(name, allowed["in"]) and allowed["text"] in text:
                needed.add(number)
                text = text.replace(allowed["text"], "")
        for words, instead in content["words"].items():
            for line, found in places(text, words):
                wrong.append(f"{name}:{line}: '{found}': write {instead}")
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if not files:
        for number, allowed in enumerate(content["allowed"]):
            if number not in needed:
                wrong.append(f"{LIST}: not needed: {allowed}")
                print(wrong[-1])
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
