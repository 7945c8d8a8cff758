"""A 2x2 mesh of routers in C++ and in Amaranth's simulator: the same beats in the same cycles, under back-pressure."""

import random

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.entry import Port
from mcf.rtl.hdl.router import Router
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.wire import Op, pack
from rtl_mesh import Plan, in_amaranth, in_cxxrtl

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

MESH = Mesh(width=2, height=2)
NODES = range(MESH.num_nodes)
LAST = 1 << 128
NUM_CYCLES = 700


def small_router() -> Router:
    return Router(depth=32, routes=32, max_beats=4, slack=4)


def tables() -> tuple[Tables, dict[tuple[int, ...], int]]:
    """Routes from each node to each other one, and to all: (root, receivers...) -> number."""
    out, numbers = Tables(mesh=MESH), {}
    for root in NODES:
        others = [node for node in NODES if node != root]
        for receivers in ([node] for node in others):
            edges = MESH.topology.route(root, receivers[0])
            numbers[root, *receivers] = out.add(spread(MESH, root, edges, receivers))
        numbers[root, *others] = out.add(spread(MESH, root, MESH.topology.multicast(root, others), others))
    return out, numbers


def traffic(root: int, numbers: dict[tuple[int, ...], int], seed: int) -> tuple[list[int], list[tuple[int, ...]]]:
    """Beats of random packets, a quarter of them to all, and where each goes."""
    rng, beats, goals = random.Random(seed), [], []
    ways = sorted(key for key in numbers if key[0] == root)
    for number in range(12):
        goal = ways[-1] if number % 4 == 0 else rng.choice(ways)
        num_beats = rng.randrange(5)
        header = {"op": Op.KV_DATA, "src": root, "route_id": numbers[goal], "len": num_beats, "tag": number}
        packet = [pack(header), *(rng.getrandbits(128) for _ in range(num_beats))]
        beats += [*packet[:-1], packet[-1] | LAST]
        goals.append(goal[1:])
    return beats, goals


def wired(stall: float) -> tuple[Plan, int]:
    """Four routers, tables written first, traffic at every node; and how many packets must arrive."""
    entries, numbers = tables()
    plan = Plan(num_instances=len(NODES), links=[])
    for node in NODES:
        for port in Port:
            other = MESH.neighbour(node, port)
            if other is not None:
                plan.links.append(((node, f"outputs__{int(port)}"), (other, f"inputs__{int(port.opposite)}")))
    copies = 0
    for node in NODES:
        words = [route | word << 5 for route, word in entries.words(node).items()]  # index of 5 bits, then the entry
        plan.sources.append(((node, "write"), 0.0, words))
        beats, goals = traffic(node, numbers, seed=node)
        idle = [LAST | 1] * 20  # packets with a bad header are dropped while the tables are written
        plan.sources.append(((node, f"inputs__{int(Port.LOCAL)}"), stall / 3, idle + beats))
        plan.sinks.append(((node, f"outputs__{int(Port.LOCAL)}"), stall))
        copies += sum(map(len, goals))
    return plan, copies


@pytest.mark.parametrize("stall", [0.0, 0.6])
def test_routers_in_cxxrtl_equal_amaranth_beat_by_beat(stall):
    plan, copies = wired(stall)
    got = in_cxxrtl(compile_module(small_router(), name="small-router"), plan, NUM_CYCLES)
    assert got == in_amaranth(small_router, plan, NUM_CYCLES)
    assert sum(word >> 128 for taken in got for _, word in taken) == copies
