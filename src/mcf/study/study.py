"""A finished study: rows, items, pictures' data; and its JSON and CSV forms."""

import csv
import io
from dataclasses import dataclass, field
from typing import Any

from mcf.study.items import Item
from mcf.study.lab import Row

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a picture: points (x, y). `is_published` draws it as the paper's."""

    name: str
    points: Points
    is_published: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One set of axes."""

    title: str
    x: str
    y: str
    lines: tuple[Line, ...]
    is_log_x: bool = False
    is_log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Study:
    """What `mcf sim run` found. `settings` say in words what was simulated; times in it are model time only."""

    name: str
    title: str
    settings: str
    rows: tuple[Row, ...]
    items: tuple[Item, ...] = ()
    panels: tuple[Panel, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """The documented object of `mcf sim run --json`."""
        return {
            "study": self.name,
            "title": self.title,
            "settings": self.settings,
            "rows": [row.to_json() for row in self.rows],
            "items": [item.to_json() for item in self.items],
        }

    def to_csv(self) -> str:
        """The rows, a line each; objects are spread over columns such as `bytes.new_kv`."""
        return _csv([_flat(row.to_json()) for row in self.rows])

    def items_csv(self) -> str:
        """The items, a line each."""
        return _csv([item.to_json() for item in self.items])


def joined(name: str, title: str, studies: tuple[Study, ...]) -> Study:
    """Several studies as one; each row and item says from which it is."""
    return Study(
        name=name,
        title=title,
        settings=" ".join(f"{study.name}: {study.settings}" for study in studies),
        rows=tuple(row for study in studies for row in study.rows),
        items=tuple(item for study in studies for item in study.items),
        panels=tuple(panel for study in studies for panel in study.panels),
    )


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            out |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            out[key] = value
    return out


def _csv(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(key for row in rows for key in row))
    names = [name for name in names if any(row.get(name) is not None for row in rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
