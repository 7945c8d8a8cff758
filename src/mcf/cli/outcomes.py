"""A study for people: rows, the paper's values beside ours, and claims; each with its arithmetic in a line."""

from collections import Counter
from collections.abc import Sequence
from typing import TextIO

from mcf.cli.tables import console
from mcf.study import FLAGS, Item, Row, Study
from mcf.units import format_bytes, format_seconds

_NONE = "-"
_TOKEN_PARTS = ("token_s", "products_s", "attention_s", "network_s", "head_s")


def print_study(stream: TextIO, study: Study) -> None:
    """Print everything that was found, and at the end how many items have which flag."""
    console(stream).print(study.title, style="bold")
    console(stream).print(f"{study.settings}\n")
    if study.rows:
        _print_rows(stream, study.rows)
        if tokens := [row for row in study.rows if row.decode]:
            _print_tokens(stream, tokens)
    values = [item for item in study.items if item.published is not None]
    if values:
        _print_values(stream, values)
    for item in study.items:
        if item.published is None:
            console(stream).print(f"{item.flag}: {item.name}", soft_wrap=True, style="bold")
            console(stream).print(f"    {item.arithmetic}", soft_wrap=True)
    if study.items:
        counts = Counter(item.flag for item in study.items)
        print(f"\n{', '.join(f'{counts[flag]} {flag}' for flag in FLAGS if counts[flag])}\n", file=stream)


def _print_rows(stream: TextIO, rows: tuple[Row, ...]) -> None:
    names = ["policy", "N", "prompt", "chunk", "budget", "profile", "TTFT (model)", "bound", "limit", "sent", "peak KV"]
    seeds = len({row.seed for row in rows}) > 1
    topologies = len({row.topology for row in rows if row.topology != "switch"}) > 0
    lines = [_cells(row) + [str(row.seed)] * seeds + [row.topology] * topologies for row in rows]
    _print_aligned(stream, names + ["seed"] * seeds + ["topology"] * topologies, lines)
    for why, count in Counter(row.why for row in rows if row.why).items():
        console(stream).print(f"no: {why}{f' ({count} rows)' if count > 1 else ''}", soft_wrap=True)
    print(file=stream)


def _print_tokens(stream: TextIO, rows: Sequence[Row]) -> None:
    """One generated token of each row that has it; what is only assumed stands apart, with its words below."""
    names = ["policy", "N", "profile", "token (model)", "products", "attention", "network", "output head"]
    is_assumed = any("assumed" in (row.decode or {}) for row in rows)
    lines = []
    for row in rows:
        parts = row.decode or {}
        times = [parts[name] for name in _TOKEN_PARTS] + [parts.get("processor_s")] * is_assumed
        cells = [_NONE if value is None else format_seconds(float(value)) for value in times]
        lines.append([row.policy, str(row.nodes), row.profile, *cells])
    _print_aligned(stream, names + ["processor (assumed, not in the sum)"] * is_assumed, lines)
    for words in dict.fromkeys(str(row.decode["assumed"]) for row in rows if row.decode and "assumed" in row.decode):
        console(stream).print(words, soft_wrap=True)
    print(file=stream)


def _cells(row: Row) -> list[str]:
    budget = _NONE if row.kv_memory_bytes is None else format_bytes(row.kv_memory_bytes)
    out = [row.policy, str(row.nodes), f"{row.prompt_tokens:,}", f"{row.chunk_tokens:,}", budget, row.profile]
    if row.ttft_s is None or row.bound_s is None or row.traffic_bytes is None or row.peak_kv_bytes is None:
        return [*out, "no", *[_NONE] * 4]
    times = [format_seconds(row.ttft_s), format_seconds(row.bound_s), row.limit or _NONE]
    return [*out, *times, format_bytes(row.traffic_bytes), format_bytes(row.peak_kv_bytes)]


def _print_values(stream: TextIO, items: list[Item]) -> None:
    """Values with the number of their arithmetic, and then the arithmetic."""
    numbers = {why: place + 1 for place, why in enumerate(dict.fromkeys(item.arithmetic for item in items))}
    rows = [
        [
            item.name,
            _number(item.ours, item.unit),
            _number(item.published, item.unit),
            _NONE if item.residual is None else f"{item.residual:+.1%}",
            item.flag,
            f"[{numbers[item.arithmetic]}]",
        ]
        for item in items
    ]
    _print_aligned(stream, ["value", "ours", "published", "residual", "flag", "why"], rows)
    print(file=stream)
    for why, number in numbers.items():
        console(stream).print(f"[{number}] {why}", soft_wrap=True)
    print(file=stream)


def _print_aligned(stream: TextIO, names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print columns as wide as they need to be, whatever the terminal: nothing is cut. The first is left-aligned."""
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for place, row in enumerate([names, *rows]):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        console(stream).print("  ".join(cells).rstrip(), soft_wrap=True, style="" if place else "bold")


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return _NONE
    return f"{value:.4f} {unit}" if unit == "GB" else f"{value:.3g} {unit}"
