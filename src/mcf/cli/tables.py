"""Short tables for people, on a terminal or in a log."""

import os
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

LOG_WIDTH = 110  # characters, where there is no terminal to ask
Rows = Sequence[tuple[str, str]]


def console(stream: TextIO) -> Console:
    """Return a console that prints plain text to the stream, with styles only on a terminal."""
    is_live = is_terminal(stream)
    width = None if is_live else LOG_WIDTH
    return Console(file=stream, width=width, force_terminal=is_live, highlight=False, markup=False, emoji=False)


def is_terminal(stream: TextIO) -> bool:
    """Say whether the stream is a terminal that can redraw a line."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def print_pairs(stream: TextIO, rows: Rows) -> None:
    """Print one line per (name, value), values aligned; long lines are left to the terminal."""
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console(stream).print(Text.assemble((name.ljust(width), "bold"), "  ", value), soft_wrap=True)


def print_columns(stream: TextIO, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table with a line of column names; the first column is left-aligned, numbers are right-aligned."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console(stream).print(table)
