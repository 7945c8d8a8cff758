"""Instances side by side in the lanes of vectors: each does what it would do alone, whatever the others do."""

import random
from functools import partial

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.build.lanes import UnknownFormError, lanes_text
from mcf.rtl.demo import demo_schedule
from mcf.rtl.faults import LinkKind
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.routes import Mesh as Nodes
from mcf.rtl.run import run
from mcf.testing import random_qkv
from rtl_mesh import Cross, Plan, beats, in_amaranth, in_cxxrtl

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))
MOST_LANES = 16
MANY = 19
WIDTHS = (7, 33, 64)


class Cells(Component):
    """Every arithmetic cell at odd widths, on parts of what comes in, folded into what goes out a cycle later."""

    def __init__(self) -> None:
        super().__init__({"input": In(BeatStream), "output": Out(BeatStream)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, found = Signal(129), []
        m.d.comb += [word.eq(self.input.payload), self.input.ready.eq(~self.output.valid)]
        m.submodules.memory = memory = Memory(shape=45, depth=11, init=range(5, 5 + 11))
        write, now, later = memory.write_port(), memory.read_port(domain="comb"), memory.read_port(domain="sync")
        m.d.comb += [write.addr.eq(word[:4]), write.data.eq(word[10:]), write.en.eq(word[4] & self.input.valid)]
        m.d.comb += [now.addr.eq(word[5:9]), later.addr.eq(word[70:74]), later.en.eq(word[75])]
        for a_width in WIDTHS:
            for b_width in (32, 65):
                a, b = word[:a_width], word[128 - b_width : 128]
                for x, y in ((a, b), (a.as_signed(), b.as_signed())):
                    found += [
                        x + y,
                        x - y,
                        x * y,
                        -x,
                        ~x,
                        x & y,
                        x | y,
                        x ^ y,
                        x < y,
                        x <= y,
                        x == y,
                        Mux(y == 0, x, y),
                    ]
                found += [a >> b[:6], a.as_signed() >> b[:6], a.any(), a.all(), a[-1].replicate(33)]
        found += [now.data, later.data]
        folded = Signal(129)
        for value in found:
            bits = Signal.like(value)
            m.d.comb += bits.eq(value)
            turned = Signal(129)
            m.d.comb += turned.eq(Cat(folded[17:], folded[:17]) ^ bits.as_unsigned()[:129])
            folded = turned
        with m.If(~self.output.valid):
            m.d.sync += [self.output.valid.eq(self.input.valid), self.output.payload.eq(folded)]
        with m.Elif(self.output.ready):
            m.d.sync += self.output.valid.eq(0)
        return m


def crowd(apart: int) -> Plan:
    """Instances that start, stall and stop at different times, `apart` from each other: between them nobody works."""
    loads = {node: beats(7 * node, node) for node in range(MANY) if node % 5}
    return Plan(
        num_instances=MANY * apart,
        links=[],
        sources=[((node * apart, f"inputs__{node % 2}"), node % 4 / 5, load) for node, load in loads.items()],
        sinks=[((node * apart, f"outputs__{1 - node % 2}"), node % 3 / 3) for node in range(MANY)],
    )


@needs_compiler
def test_an_instance_does_beside_others_what_it_does_alone() -> None:
    """Beat by beat; a lane that moved, or slept on, because of another differs."""
    library = compile_module(Cross(), name="cross")
    beside, alone = (in_cxxrtl(library, crowd(apart), 900) for apart in (1, MOST_LANES))
    assert beside == alone
    assert [len(taken) for taken in beside] == [7 * node if node % 5 else 0 for node in range(MANY)]


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_every_cell_gives_what_amaranth_gives(stall: float) -> None:
    rng = random.Random(2)
    values = [
        [rng.getrandbits(129) >> rng.choice([0, 0, 40, 97]) << rng.choice([0, 50]) for _ in range(60)] for _ in range(3)
    ]
    plan = Plan(
        num_instances=3,
        links=[],
        sources=[((n, "input"), stall / 3, [value % (1 << 129) for value in values[n]]) for n in range(3)],
        sinks=[((n, "output"), stall) for n in range(3)],
    )
    got = in_cxxrtl(compile_module(Cells(), name="cells 7 33 64 b"), plan, 600)
    assert got == in_amaranth(Cells, plan, 600)
    assert [len(taken) for taken in got] == [60] * 3


@needs_compiler
@pytest.mark.full
@pytest.mark.parametrize("kind", LinkKind)
def test_a_mesh_runs_the_same_cycles_one_instance_at_a_time(kind: LinkKind) -> None:
    """Multicasts, reductions and the replica directory now and then; with a waveform, instances run one by one."""
    nodes = Nodes(width=2, height=2)
    sched = demo_schedule(nodes)
    simulated = partial(run, sched, *random_qkv(sched.meta, decode_tokens=1), decode_tokens=1, mesh=nodes, links=kind)
    dump: list[bytes] = []
    beside, alone = simulated(), simulated(waveform=dump.append)
    assert len(dump) > 1  # as it grows
    assert beside.cycles == alone.cycles
    assert beside.links == alone.links
    assert beside.merged == alone.merged
    assert (beside.out == alone.out).all()


HEADER = "\twire<4> p_x;\n\t/*output*/ value<4> p_y;\n\tmemory<8> memory_p_m { 16u };\n"


def code(*lines: str) -> str:
    body = "".join(f"\t{line}\n" for line in ("bool converged = true;", *lines, "return converged;"))
    return f"bool p_top::eval(performer *performer) {{\n{body}}}\n\n}} // namespace\n"


def test_what_no_output_needs_is_not_evaluated_for_outputs() -> None:
    text = lanes_text(
        code(
            "value<4> i_a;",
            "value<4> i_b;",
            "i_a = add_uu<4>(p_x.curr, value<1>{0x1u});",
            "i_b = (reduce_or<1>(i_a) ? i_a : p_x.curr.slice<3,0>().val());",
            "p_y = i_a;",
            "if (posedge_p_clk) {",
            "\tp_x.next = (p_rst ? value<4>{0u} : i_b);",
            "}",
        ),
        HEADER,
    )
    edge, _, outputs = text.partition("void outputs()")
    assert "const value<4> i_b = pick(reduce_or<1>(i_a), i_a, curr.p_x.slice<3,0>());" in edge
    assert "next.p_x = pick(p_rst, value<4>{0u}, i_b);" in edge
    assert "i_b" not in outputs
    assert "p_y = i_a;" in outputs


@pytest.mark.parametrize(
    "line",
    [
        "converged = false;",  # feeds back into itself
        "p_y = divfloor_uu<4>(p_x.curr, p_x.curr);",
        "p_y = p_x.curr.bmux<4>(p_x.curr).val();",
        "if (negedge_p_clk) {",
        "performer->print(p_y);",
    ],
)
def test_code_of_another_form_is_left_as_it_is(line: str) -> None:
    with pytest.raises(UnknownFormError):
        lanes_text(code(line), HEADER)
