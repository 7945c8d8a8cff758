"""The files of a study: CSV, JSON, PNG, and one HTML page that holds everything and asks for nothing."""

import base64
import html
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mcf.errors import UserError
from mcf.study import FLAGS, Item, Row, Study
from mcf.study.study import Panel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_INCHES = (5.2, 3.8)  # of one set of axes
_DPI = 110
_COLOURS = {
    "reproduced": "#1a7f37",
    "fitted": "#9a6700",
    "not explained": "#cf222e",
    "physically impossible": "#8250df",
}
_ROW_NAMES = (
    *("policy", "nodes", "prompt_tokens", "chunk_tokens", "topology", "profile", "kv_memory_bytes", "seed"),
    *("ttft_s", "bound_s", "limit", "traffic_bytes", "peak_kv_bytes", "why"),
)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 13px; }
th, td { border-bottom: 1px solid #d1d9e0; padding: .25rem .6rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child, td.text { text-align: left; }
img { max-width: 100%; }
.flag { color: #fff; border-radius: .6rem; padding: 0 .5rem; white-space: nowrap; }
"""


def write_files(folder: Path, study: Study) -> list[str]:
    """Write every form of a study into a folder; returns the files' names. Raises UserError."""
    png = draw(study)
    files: dict[str, bytes] = {
        f"{study.name}.csv": study.to_csv().encode(),
        f"{study.name}.json": (json.dumps(study.to_json(), indent=2, allow_nan=False) + "\n").encode(),
    }
    if study.items:
        files[f"{study.name}-items.csv"] = study.items_csv().encode()
    if png:
        files[f"{study.name}.png"] = png
    files[f"{study.name}.html"] = page(study, png).encode()
    for name, data in files.items():
        try:
            (folder / name).write_bytes(data)
        except OSError as error:
            raise UserError(
                f"cannot write {str(folder / name)!r} ({error.strerror or error}): give another --out"
            ) from None
    return list(files)


def draw(study: Study) -> bytes:
    """All panels as one PNG; empty where the study has none. Raises UserError where matplotlib is missing."""
    if not study.panels:
        return b""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg  # no display, no global state
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("matplotlib is not there to draw the figures: install it with pip install 'mcf[sim]'") from None
    columns = min(_COLUMNS, len(study.panels))
    rows = -(-len(study.panels) // columns)
    figure = Figure(figsize=(_INCHES[0] * columns, _INCHES[1] * rows), dpi=_DPI, layout="constrained")
    FigureCanvasAgg(figure)
    for place, panel in enumerate(study.panels):
        _draw_panel(figure.add_subplot(rows, columns, place + 1), panel)
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def _draw_panel(axes: "Axes", panel: Panel) -> None:
    colours: dict[str, str] = {}
    for line in panel.lines:
        base = line.name.removesuffix(", published")
        colour = colours.setdefault(base, f"C{len(colours)}")
        x, y = [p[0] for p in line.points], [p[1] for p in line.points]
        axes.plot(
            x, y, "x--" if line.is_published else "o-", color=colour, label=line.name, markersize=4, linewidth=1.3
        )
    axes.set(title=panel.title, xlabel=panel.x, ylabel=panel.y)
    axes.grid(alpha=0.3)
    if panel.is_log_x:
        ticks = sorted({x for line in panel.lines for x, _ in line.points})
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    if panel.is_log_y:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)


# --- the page ---


def page(study: Study, png: bytes) -> str:
    """One self-contained HTML page."""
    picture = (
        f'<img alt="{_text(study.title)}" src="data:image/png;base64,{base64.b64encode(png).decode()}">' if png else ""
    )
    legend = "".join(f"<li>{_flag(flag)} {_text(words)}</li>" for flag, words in FLAGS.items())
    items = f"<h2>The paper's values and claims</h2><ul>{legend}</ul>{_items(study.items)}" if study.items else ""
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{_text(study.title)}</title>'
        f"<style>{_STYLE}</style>\n<h1>{_text(study.title)}</h1><p>{_text(study.settings)} Model time is what the "
        f"simulator says; nothing here was measured with a clock.</p>\n{picture}\n{items}\n<h2>Simulated rows</h2>"
        f"{_rows(study.rows)}{_tokens(study.rows)}</html>\n"
    )


def _items(items: tuple[Item, ...]) -> str:
    cells = [
        [
            f'<td class="text">{_text(item.name)}</td>',
            f"<td>{_number(item.ours)}</td><td>{_number(item.published)}</td><td>{_text(item.unit)}</td>",
            f"<td>{'' if item.residual is None else f'{item.residual:+.1%}'}</td><td>{_flag(item.flag)}</td>",
            f'<td class="text">{_text(item.arithmetic)}</td>',
        ]
        for item in items
    ]
    return _table(
        ("item", "ours", "published", "unit", "residual", "flag", "arithmetic"), ["".join(row) for row in cells]
    )


def _rows(rows: tuple[Row, ...]) -> str:
    shown = [name for name in _ROW_NAMES if any(getattr(row, name) is not None for row in rows)]
    lines = ["".join(f"<td>{_cell(getattr(row, name))}</td>" for name in shown) for row in rows]
    return _table([f"{name} (model time)" if name == "ttft_s" else name for name in shown], lines)


def _tokens(rows: tuple[Row, ...]) -> str:
    """Parts of a generated token, where they were asked for."""
    found = [(row, row.decode) for row in rows if row.decode]
    if not found:
        return ""
    parts = list(dict.fromkeys(name for _, token in found for name in token))
    lines = [
        "".join(f"<td>{_cell(cell)}</td>" for cell in (row.policy, row.profile, *map(token.get, parts)))
        for row, token in found
    ]
    names = [f"{name} (model time)" if name.endswith("_s") else name for name in parts]
    return "<h2>One generated token</h2>" + _table(["policy", "profile", *names], lines)


def _table(names: tuple[str, ...] | list[str], lines: list[str]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in names)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else _text(str(value))


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5g}"


def _flag(flag: str) -> str:
    return f'<span class="flag" style="background:{_COLOURS[flag]}">{_text(flag)}</span>'


def _text(text: str) -> str:
    return html.escape(text)
