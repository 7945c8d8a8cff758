"""docs/glossary.md: every symbol has a meaning, a unit, an equation, and a code name that exists or "not built yet"."""

import dataclasses
import re
from importlib import import_module
from typing import Any

import pytest

from mcf.mars import C_ring, M_chunk, M_token
from mcf.mars.cost import INT4
from mcf.model import ModelShape
from mcf.schedule.wire import TABLE
from pages import read, rows

PAGE = "docs/glossary.md"
ROWS = rows(read(PAGE))
CODE = sorted(set(re.findall(r"`(mcf(?:\.\w+)+)`", read(PAGE))))
SYMBOLS = (
    *("N", "S", "B", "C", "L", "H_q", "H_kv", "d", "b", "M_token", "M_chunk", "M_hist(c)", "r(c)", "r_mem(c)"),
    *("r_reuse(c)", "R_c", "alpha", "P_node", "BW_eff", "tau_link", "h_copy, h_save", "h_dis", "h_near", "h_ring"),
    *("D_crit", "T_attn(B, c)", "T_prop(B, r_c)", "T_TTFT", "T_comp, T_comm", "T_sync(c)", "S_node", "M_buf"),
    *("M_node(c)", "C_rep(c), C_rep,total", "C_access(c)", "C_MARS", "C_ring", "C_full", "o_i", "P_i(c)", "gamma"),
    *("stage", "op", "src", "dst", "kv_id", "route_id", "collective", "reduce_op"),
)


def find(path: str) -> Any:
    """Return what a dotted path names: a module, a thing in it, or a field of a class in it."""
    parts = path.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            fields = {f.name: f for f in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else {}
            found = fields[name] if name in fields else getattr(found, name)
        return found
    raise ModuleNotFoundError(path)


@pytest.mark.parametrize("path", CODE)
def test_each_code_name_exists(path: str) -> None:
    assert find(path) is not None


def test_a_name_that_is_wrong_is_noticed() -> None:
    with pytest.raises(AttributeError):
        find("mcf.mars.M_tocken")
    with pytest.raises(AttributeError):
        find("mcf.schedule.ScheduleMeta.num_knots")


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_each_symbol_of_the_paper_has_one_row(symbol: str) -> None:
    assert [row[0] for row in ROWS].count(symbol) == 1


def test_each_row_says_what_where_and_in_which_unit() -> None:
    assert len(ROWS) >= len(SYMBOLS)
    for row in ROWS:
        assert len(row) == 5, row
        assert all(row), row
        assert re.fullmatch(r"`mcf[.\w]+`|not built yet", row[3]), row
        assert re.fullmatch(r"-|\d+(, \d+)*", row[4]), row


def test_each_equation_of_the_paper_is_named() -> None:
    named = {int(number) for row in ROWS for number in re.findall(r"\d+", row[4])}
    assert named == set(range(1, 30))


def test_the_example_of_the_traps_is_right() -> None:
    shape = ModelShape(
        name="qwen2.5-1.5b", num_layers=28, num_q_heads=12, num_kv_heads=2, head_dim=128, hidden_size=1536,
        intermediate_size=8960, vocab_size=151936, max_positions=32768,
    )  # fmt: skip
    per_token = M_token(shape, b=INT4)
    volume = C_ring(M_chunk=M_chunk(512, per_token), N=2, C=32)
    text = read(PAGE)
    assert f"M_token is {int(per_token):,} bytes" in text
    assert f"{float(volume):.4g}".replace("+09", "9") in text


def test_the_header_fields_are_as_wide_as_the_wire_table_says() -> None:
    widths = {
        part: sum(f.width for f in TABLE if f.part_of == part) for part in {f.part_of for f in TABLE if f.part_of}
    }
    for part, width in widths.items():
        assert next(row[2] for row in ROWS if row[0] == part) == f"{width} bits"
