"""TOML text -> tables whose mistakes are named by file, line and nearest key."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

from mcf.errors import UserError


class Table:
    """One table of a TOML file: what it holds, and where that stands."""

    def __init__(self, data: dict[str, Any], text: str, file: str, path: tuple[str | int, ...] = ()) -> None:
        self.data, self.text, self.file, self.path = data, text, file, path

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def check_keys(self, known: Iterable[str]) -> None:
        """Refuse a key that is not known; says the line and the nearest key."""
        names = list(known)
        for key in self.data:
            if key not in names:
                near = self._name(difflib.get_close_matches(key, names, n=1, cutoff=0.0)[0])
                raise UserError(
                    f"unknown key {self._name(key)!r} in {self.where(key)}: did you mean {near!r}? known are "
                    f"{', '.join(names)}"
                )

    def get(self, key: str, kind: type | tuple[type, ...], what: str, default: Any = None) -> Any:
        """The value of a key, of a type; the default where it is not there."""
        if key not in self.data:
            return default
        value = self.data[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            self.refuse(key, f"expected {what}")
        return value

    def need(self, key: str, kind: type | tuple[type, ...], what: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.data:
            raise UserError(f"missing key {self._name(key)!r} in {self.where()}: expected {what}; add it")
        return self.get(key, kind, what)

    def table(self, key: str) -> "Table | None":
        """The table under a key."""
        value = self.get(key, dict, "a table")
        return None if value is None else Table(value, self.text, self.file, (*self.path, key))

    def tables(self, key: str) -> list["Table"]:
        """The tables under a key, `[[key]]`."""
        found = self.get(key, list, "tables, each under a heading in double brackets", [])
        if not all(isinstance(value, dict) for value in found):
            self.refuse(key, "expected tables, each under a heading in double brackets")
        return [Table(value, self.text, self.file, (*self.path, key, at)) for at, value in enumerate(found)]

    def refuse(self, key: str, expected: str) -> NoReturn:
        """Raise a UserError about the value of a key."""
        raise UserError(f"got {self._name(key)} = {self.data[key]!r} in {self.where(key)}: {expected}")

    def where(self, key: str | None = None) -> str:
        """`file, line n`: the line of a key, or of the table's heading; the file alone where it cannot be found."""
        line = self._line(key)
        return f"{self.file}, line {line}" if line else self.file

    def _name(self, key: str) -> str:
        return ".".join([*(str(part) for part in self.path if isinstance(part, str)), key])

    def _line(self, key: str | None) -> int:
        """Look for the key below its table's heading, else for a dotted or inline form of it."""
        lines, first = self.text.splitlines(), 0
        names = [part for part in self.path if isinstance(part, str)]
        turn = next((part for part in reversed(self.path) if isinstance(part, int)), 0)
        if names:
            dotted = r"\s*\.\s*".join(map(re.escape, names))
            heading = re.compile(rf"\s*\[\[?\s*{dotted}\s*\]\]?")
            found = [at for at, line in enumerate(lines) if heading.match(line)]
            first = found[turn] + 1 if turn < len(found) else 0
            if key is None:
                return first
        if key is None:
            return 0
        word = re.escape(key)
        pattern = re.compile(rf"(\s*|.*[\s.{{,]){word}[\"']?\s*[=.]|\s*\[+\s*([\w.-]+\.)?{word}\s*[\].]")
        return next((at + 1 for at in range(first, len(lines)) if pattern.match(lines[at])), 0)


def read_table(path: str | PathLike[str], what: str) -> Table:
    """Read a TOML file. Raises UserError for a file that cannot be read, is not UTF-8, or is not TOML."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the {what} {str(path)!r} ({why}): expected a TOML file") from None
    return parse_table(text, str(path))


def parse_table(text: str, file: str) -> Table:
    """Read TOML text; `file` names it in errors."""
    try:
        return Table(tomllib.loads(text), text, file)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"cannot read {file} as TOML ({error}): correct that line") from None
