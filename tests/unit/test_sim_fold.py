"""Equal nodes are simulated once, and nothing tells; nodes that differ in anything are simulated one by one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mcf.cluster import Cluster, LinkSpec
from mcf.policies import plan
from mcf.schedule import Schedule, verify
from mcf.schedule.steps import ATTEND, PRODUCE, RECV
from mcf.sim import LinkChange, SimResult, load_profile, simulate
from mcf.sim.cost import row_seconds
from mcf.sim.fold import find_fold, turned
from mcf.sim.profile import ProfileNode
from mcf.trace.columns import Table
from simulated import asked, profile, tiny_shape

ALIKE = [
    ("zigzag", "switch", 4, 3), ("zigzag", "ring", 5, 3), ("gather", "switch", 5, 1),
    ("mars-paper", "switch", 4, 1), ("one-shot", "switch", 8, 2),
]  # fmt: skip
SHAPE = tiny_shape(6)


def alike(name: str, topology: str = "switch", nodes: int = 4, chunks: int = 1) -> Schedule:
    return plan(name, asked(SHAPE, nodes, 8 * nodes * chunks, 8 * nodes, topology))


def in_order(table: Table) -> Table:
    """Rows of equal times in an order of their own."""
    return table[np.lexsort([table[name] for name in table.dtype.names or ()])]


def same(one: SimResult, other: SimResult) -> bool:
    """Everything that a result says, to the last bit."""
    names = ("ttft_s", "finish_s", "link_busy_s", "link_bytes", "traffic", "multicast_bytes_s", "link_loads")
    numbers = all(getattr(one, name) == getattr(other, name) for name in names)
    events = np.array_equal(in_order(one.trace.events), in_order(other.trace.events))
    nodes = range(len(one.finish_s))
    mine, theirs = one.trace.memory, other.trace.memory
    return numbers and events and all(
        np.array_equal(mine[mine["node"] == n], theirs[theirs["node"] == n]) for n in nodes
    )  # fmt: skip


@pytest.mark.parametrize("layers", [None, 4])
@pytest.mark.parametrize("used", [load_profile("gpu-10g"), profile(), profile(link_latency_s=0.0)])
@pytest.mark.parametrize(("name", "topology", "nodes", "chunks"), ALIKE)
def test_one_node_stands_for_all(
    name: str, topology: str, nodes: int, chunks: int, used: Any, layers: int | None
) -> None:
    sched = alike(name, topology, nodes, chunks)
    folded, whole = (simulate(sched, used, shape=SHAPE, layers=layers, fold=fold) for fold in (True, False))
    assert folded.fold is not None
    assert whole.fold is None
    assert len(folded.recorded.events) < len(whole.recorded.events)
    assert same(folded, whole)
    assert tuple(folded.trace.peak_bytes().values()) == verify(sched).peak_bytes


def test_a_folded_trace_keeps_reserves_that_differ() -> None:
    request = replace(asked(SHAPE, 4, 512, 256), max_new_tokens=65)  # one page more on one node than on the others
    sched = plan("zigzag", request)
    folded, whole = (simulate(sched, profile(), shape=SHAPE, fold=fold) for fold in (True, False))
    assert folded.fold is not None
    assert len(set(folded.trace.peak_bytes().values())) > 1
    assert same(folded, whole)


def is_folded(sched: Schedule, **options: Any) -> bool:
    used = options.pop("used", profile())
    return simulate(sched, used, shape=SHAPE, **options).fold is not None


@pytest.mark.parametrize(
    "options",
    [
        {"slowdown": [1, 1, 2, 1]},
        {"changes": [LinkChange(link=(0, -1), factor=0.5)]},
        {"merges": True},
        {"cluster": Cluster.uniform("switch", 4).with_links({(2, -1): LinkSpec(rate_bits_s=80.0)})},
        {"used": profile(nodes=(*(ProfileNode(),) * 3, ProfileNode(numbers={"link_bytes_s": 32.0})))},
        {"used": profile(links={(1, 2): {"link_bytes_s": 32.0}})},
    ],
)
def test_nodes_or_links_that_differ_are_simulated_one_by_one(options: dict[str, Any]) -> None:
    assert not is_folded(alike("zigzag"), **options)


@pytest.mark.parametrize(
    ("name", "topology", "nodes", "prompt"),
    [
        ("zigzag", "switch", 4, 33),  # a token more on one node
        ("ring", "switch", 4, 32),  # later nodes see more
        ("gather", "switch", 4, 64),  # receives of a history stand in the order of the senders' numbers
        ("zigzag", "mesh:2x2", 4, 32),
        ("mars", "switch", 4, 64),
        ("full", "switch", 1, 32),
    ],
)
def test_schedules_that_differ_from_node_to_node_are_simulated_whole(
    name: str, topology: str, nodes: int, prompt: int
) -> None:
    assert not is_folded(plan(name, asked(SHAPE, nodes, prompt, 32, topology)))


def changed(sched: Schedule, kind: int, column: str, value: int) -> Schedule:
    """The last prefill row of a kind on node 2, with another value in a column."""
    steps = sched.steps.copy()
    row = np.flatnonzero((steps["kind"] == kind) & (steps["node"] == 2) & (steps["stage"] == 0))[-1]
    assert steps[column][row] != value
    steps[column][row] = value
    return sched.replace(steps=steps)


@pytest.mark.parametrize(
    ("kind", "column", "value"), [(RECV, "hold", 1), (ATTEND, "m_lo", 0), (PRODUCE, "lane", 1), (ATTEND, "q", 1)]
)
def test_one_row_that_differs_is_enough(kind: int, column: str, value: int) -> None:
    sched = alike("zigzag")
    assert is_folded(sched)
    edited = changed(sched, kind, column, value)

    seconds = row_seconds(sched, SHAPE, profile())
    uniform = Cluster.uniform("switch", 4)
    assert find_fold(sched, seconds, uniform, profile()) is not None
    assert find_fold(edited, seconds, uniform, profile()) is None


def test_a_list_that_is_swapped_with_another_node_is_noticed() -> None:
    """Senders and receivers that exchange their names."""
    sched = alike("gather", nodes=4)
    sends = sched.steps["node"] == 1
    steps = sched.steps.copy()
    steps["m_lo"][sends], steps["m_hi"][sends] = 3 - steps["m_lo"][sends], 4 - steps["m_lo"][sends]
    assert simulate(sched, profile(), shape=SHAPE).fold is not None

    seconds = row_seconds(sched, SHAPE, profile())
    assert find_fold(sched.replace(steps=steps), seconds, Cluster.uniform("switch", 4), profile()) is None


@pytest.mark.parametrize("used", [load_profile("gpu-100g"), load_profile("cpu-1g"), profile()])
@pytest.mark.parametrize("name", ["gather", "pass-q"])
def test_turned_receives_make_nodes_alike(name: str, used: Any) -> None:
    """The turned schedule is as legal, moves as many bytes, and takes the same time but for ties."""
    sched = alike(name, chunks=4)
    other = turned(sched)
    report, whole = verify(other), simulate(other, used, shape=SHAPE, fold=False)
    folded, before = (simulate(s, used, shape=SHAPE) for s in (other, sched))
    assert before.fold is None
    assert folded.fold is not None
    assert same(folded, whole)
    assert report.traffic == verify(sched).traffic == before.traffic
    assert report.peak_bytes == verify(sched).peak_bytes
    if name == "gather":  # queries and states cross all at once: there ties are worth more
        assert folded.ttft_s == pytest.approx(before.ttft_s, rel=0.04)


def test_receives_that_are_alike_stay_where_they_are() -> None:
    sched = alike("zigzag")
    assert turned(sched) == sched
