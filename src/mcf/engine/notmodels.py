"""Recognise files that were meant to be a model but are something else."""

import re
from pathlib import Path

from mcf.errors import ModelError

LFS_PREFIX = b"version https://git-lfs.github.com/spec"
_HTML = re.compile(rb"^(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)?<(!doctype html|html|head)", re.IGNORECASE | re.DOTALL)


def explain_foreign_file(path: Path, *, expected: str) -> None:
    """Raise `ModelError` where the file is missing, empty, a git-lfs pointer or a web page; else return."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}): expected {expected}") from None
    if size == 0:
        raise ModelError(f"{path.name} is empty (0 bytes): expected {expected}; the download failed, get it again")
    if head.startswith(LFS_PREFIX):
        found = re.search(rb"^size (\d+)", head, re.MULTILINE)
        real = f" to a file of {found.group(1).decode()} bytes" if found else ""
        raise ModelError(
            f"{path.name} is a git-lfs pointer{real}, not the file itself: expected {expected}; "
            "do `git lfs pull` in its repository, or download the file"
        )
    if _HTML.match(head):
        raise ModelError(
            f"{path.name} is an HTML page, most likely an error or login page: expected {expected}; "
            "look at it with a text editor, then download the file again"
        )
