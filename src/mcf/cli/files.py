"""Files that a person names: text in, text out, one clear line where that cannot be."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from mcf.errors import UserError

STDIN = "-"


def read_text(name: str, *, what: str) -> str:
    """Return the UTF-8 text of a file, or of stdin for `-`. A byte order mark is left out. Raises UserError."""
    shown = "stdin" if name == STDIN else repr(name)
    try:
        raw = sys.stdin.buffer.read() if name == STDIN else Path(name).expanduser().read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot read {shown} ({why}): expected {what}; check the path") from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{shown} is not UTF-8 text (byte 0x{raw[error.start]:02x} at {error.start}): expected {what}; "
            "convert it, for instance with iconv"
        ) from None


def check_target(name: str, *, what: str) -> None:
    """Raise UserError where a file of that name could not be written, before the work whose result it would hold."""
    path = Path(name).expanduser()
    if path.is_dir():
        problem = "it is a directory"
    elif not path.parent.is_dir():
        problem = f"there is no directory {str(path.parent)!r}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        problem = "permission denied"
    else:
        return
    raise UserError(f"cannot write {what} to {name!r} ({problem}): expected a file in a directory that can be written")


@contextmanager
def appending(name: str, *, what: str) -> Iterator[Callable[[bytes], None]]:
    """Give a function that writes bytes behind those written before. Raises UserError."""
    try:
        with Path(name).expanduser().open("wb") as file:
            yield lambda piece: _write(file, piece, name, what)
    except OSError as error:
        raise _unwritable(name, what, error) from None


def _write(file: BinaryIO, piece: bytes, name: str, what: str) -> None:
    try:
        file.write(piece)
    except OSError as error:
        raise _unwritable(name, what, error) from None


def _unwritable(name: str, what: str, error: OSError) -> UserError:
    why = error.strerror or error
    return UserError(f"cannot write {what} to {name!r} ({why}): expected a file that can be written")


def write_text(name: str, text: str, *, what: str) -> None:
    """Write a UTF-8 text file. Raises UserError."""
    try:
        Path(name).expanduser().write_text(text, encoding="utf-8")
    except OSError as error:
        raise _unwritable(name, what, error) from None
