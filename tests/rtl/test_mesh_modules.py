"""Modules with memories and wide arithmetic: compiled they do what Amaranth's simulator does, beat by beat."""

import random
from functools import partial
from itertools import chain

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.golden.state import EMPTY_EXPONENT
from mcf.rtl.hdl.credit_link import CreditLink
from mcf.rtl.hdl.kv_dir import KvDirectory
from mcf.rtl.hdl.reduce import Reduce
from mcf.rtl.kv_ops import KvOp
from mcf.schedule.wire import Op, ReduceOp, pack
from rtl_mesh import Plan, in_amaranth, in_cxxrtl

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

LAST = 1 << 128
SLOTS, BEATS = 8, 4
OPS = (ReduceOp.MERGE, ReduceOp.SUM, ReduceOp.MAX)


def state_packet(rng: random.Random, tag: int, op: ReduceOp, child: int) -> list[int]:
    """A header, the state's numbers, then lanes of 16 bits: also of states that are empty, or far from the others."""
    exponent = rng.choice([rng.randrange(-40, 40), rng.randrange(-3, 4), EMPTY_EXPONENT]) & 0xFFFF
    first = rng.randrange(1 << 14, 1 << 15) | exponent << 16 | rng.randrange(1 << 16) << 32 | child << 48
    header = pack({"op": Op.STATE, "reduce_op": op, "len": BEATS + 1, "tag": tag})
    beats = [header, first, *(rng.getrandbits(128) for _ in range(BEATS))]
    return [*beats[:-1], beats[-1] | LAST]


def reductions(stall: float) -> Plan:
    """Every slot is armed; the states that they wait for come in mixed order, some of them twice."""
    rng, setups, packets = random.Random(7), [], []
    for slot in range(SLOTS):
        op, children, tag = OPS[slot % len(OPS)], rng.randrange(1, 5), slot | SLOTS
        header = pack({"op": Op.REDUCE_RESULT, "reduce_op": op, "len": BEATS + 1, "tag": slot, "src": 9})
        setups.append(header | tag << 128 | children << 136 | rng.randrange(16) << 141)
        packets += [state_packet(rng, tag, op, child % children) for child in range(children + slot % 2)]
    rng.shuffle(packets)
    idle = [LAST | 1] * (2 * SLOTS)  # dropped, while the slots are armed
    return Plan(
        num_instances=1,
        links=[],
        sources=[((0, "write"), 0.0, setups), ((0, "packets"), stall / 2, [*idle, *chain(*packets)])],
        sinks=[((0, "merged"), stall)],
    )


def link_ends(stall: float) -> Plan:
    """Two ends, beats both ways."""
    rng = random.Random(3)
    beats = [[rng.getrandbits(129) for _ in range(60)] for _ in range(2)]
    return Plan(
        num_instances=2,
        links=[((0, "tx"), (1, "rx")), ((1, "tx"), (0, "rx"))],
        sources=[((n, "packets"), stall / 3, beats[n]) for n in range(2)],
        sinks=[((n, "delivered"), stall) for n in range(2)],
    )


def directory(stall: float) -> Plan:
    """Random operations on few blocks, so that most are met again."""
    rng = random.Random(5)
    ops = [rng.choice(list(KvOp)) | rng.randrange(24) << 4 | rng.getrandbits(17) << 36 for _ in range(150)]
    return Plan(num_instances=1, links=[], sources=[((0, "ops"), stall / 3, ops)], sinks=[((0, "results"), stall)])


# A module, what to do with it, for how many cycles, and how much comes out at least.
CASES = {
    "reduce": (partial(Reduce, slots=SLOTS, beats=BEATS), reductions, 500, SLOTS * (BEATS + 2)),
    "link": (partial(CreditLink, depth=8, timeout=24), link_ends, 400, 120),
    "directory": (partial(KvDirectory, 16), directory, 900, 150),
}


@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.full), 0.6])
@pytest.mark.parametrize("name", CASES)
def test_compiled_and_simulated_are_the_same_beat_by_beat(name: str, stall: float) -> None:
    make, plan_of, num_cycles, num_taken = CASES[name]
    plan = plan_of(stall)
    got = in_cxxrtl(compile_module(make(), name=f"small-{name}"), plan, num_cycles)
    assert got == in_amaranth(make, plan, num_cycles)
    assert sum(map(len, got)) >= num_taken
