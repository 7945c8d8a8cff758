"""Routers that packets cut through: who gets an output, who waits, what fills up, when it is handed out."""

from collections.abc import Iterator, Sequence
from heapq import heappop
from itertools import pairwise

import pytest

from mcf.cluster import SWITCH, Topology
from mcf.sim.events import Event
from mcf.sim.routers import Routers, Train
from mcf.sim.ways import Tree, has_circle, ports_of

HOP = 10.0  # from a start to the next header; a beat is a second, a packet 65
LOOK, STORE, PACKET = 6.0, 3.0, 65.0


class Bench:
    """Routers of a mesh, what they said, and the clock."""

    def __init__(self, topology: str, num_nodes: int, room: float) -> None:
        self.topology, self.num_nodes = Topology.parse(topology, num_nodes), num_nodes
        self.heap: list[Event] = []
        self.routers = Routers(self.heap, self, 1.0, room)
        self.starts: dict[tuple[int, int, int], list[float]] = {}
        self.ends: dict[tuple[int, int], float] = {}

    def ports(self, router: int) -> Sequence[int | None]:
        return ports_of(self.topology, self.num_nodes, router)

    def pace(self, a: int, b: int) -> float:
        return 2.0 if (a, b) == (1, 2) and self.num_nodes == 3 else 1.0

    def onward(self, a: int, b: int) -> float:
        return HOP

    def crosses(self, train: Train, a: int, b: int, at: float, seconds: float) -> None:
        self.starts.setdefault((train.number, a, b), []).append(at)

    def delivered(self, number: int, node: int, at: float) -> None:
        self.ends[number, node] = at

    def send(self, number: int, tree: Tree, count: int = 1, at: float = 0.0, length: float = PACKET) -> None:
        for index in range(count):
            train = Train(number, tree, length, min(length, PACKET), is_last=index == count - 1)
            self.routers.enter(tree.root, train, at)

    def run(self) -> None:
        while self.heap:
            now, _, number = heappop(self.heap)
            self.routers.passed(number, now)


def way(*nodes: int) -> Tree:
    """From node to node, to the last one."""
    return Tree(root=nodes[0], outs={a: (b,) for a, b in zip(nodes, (*nodes[1:], nodes[-1]), strict=True)})


def test_a_packet_cuts_through_and_is_stored_where_it_ends() -> None:
    bench = Bench("mesh:4x1", 4, 216.0)
    bench.send(0, way(0, 1, 2, 3))
    bench.run()
    assert bench.starts == {(0, a, a + 1): [LOOK + a * (HOP + LOOK)] for a in range(3)}
    assert bench.ends == {(0, 3): LOOK + 3 * (HOP + LOOK) + PACKET + STORE + PACKET}


def test_packets_of_a_payload_follow_without_a_gap() -> None:
    bench = Bench("mesh:2x1", 2, 216.0)
    bench.send(0, way(0, 1), count=5)
    bench.run()
    assert bench.starts[0, 0, 1] == [LOOK + n * PACKET for n in range(5)]


def test_a_slow_link_sets_the_pace() -> None:
    bench = Bench("mesh:3x1", 3, 216.0)
    bench.send(0, way(0, 1, 2), count=3)
    bench.run()
    first = LOOK + HOP + LOOK
    assert bench.starts[0, 1, 2] == [first + n * 2 * PACKET for n in range(3)]


def test_a_multicast_waits_for_all_its_outputs_and_keeps_them_idle() -> None:
    """Node 1's own packet moves to 2; the multicast of 0 to 1 and 2 waits for that link, and node 1's port with it."""
    bench = Bench("mesh:4x1", 4, 216.0)
    bench.send(0, way(1, 2))
    bench.send(1, Tree(root=0, outs={0: (1,), 1: (1, 2), 2: (2,)}))
    bench.send(2, way(2, 1), at=LOOK + HOP + 3.0)
    bench.run()
    assert bench.starts[0, 1, 2] == [LOOK]
    assert bench.starts[1, 1, 2] == [LOOK + PACKET]
    both = LOOK + PACKET + PACKET  # node 1's port is free for the packet of node 2 when the multicast has passed
    assert bench.ends[2, 1] == both + PACKET + STORE + PACKET
    assert bench.ends[1, 1] == bench.ends[2, 1] - PACKET


def test_a_full_link_stops_its_sender_and_nobody_else() -> None:
    """Nodes 0 and 2 send to 1's port at once: it takes them in turn; node 0's link holds three packets and one more."""
    bench = Bench("mesh:3x3", 9, 216.0)
    bench.send(0, way(0, 1), count=12)
    bench.send(1, way(2, 1), count=12)
    bench.send(2, way(0, 3))
    bench.run()
    starts = bench.starts[0, 0, 1]
    assert starts[:5] == [LOOK + n * PACKET for n in range(5)]
    assert max(b - a for a, b in pairwise(starts)) == pytest.approx(2 * PACKET, abs=5)
    done = LOOK + HOP + LOOK + 24 * PACKET + PACKET + STORE
    assert max(bench.ends[0, 1], bench.ends[1, 1]) == pytest.approx(done, abs=5)
    assert bench.starts[2, 0, 3] == [starts[-1] + PACKET]  # behind them at its own node's port
    bench = Bench("mesh:3x3", 9, float("inf"))
    bench.send(0, way(0, 1), count=12)
    bench.send(1, way(2, 1), count=12)
    bench.run()
    assert bench.starts[0, 0, 1] == [LOOK + n * PACKET for n in range(12)]


def circle() -> Iterator[Tree]:
    return (way(a, b, c) for a, b, c in ((0, 1, 3), (1, 3, 2), (3, 2, 0), (2, 0, 1)))


def test_circles_of_links_are_found() -> None:
    assert has_circle(circle())
    assert not has_circle([*circle()][:3])


def test_ports_are_in_the_hardwares_order() -> None:
    assert ports_of(Topology.parse("mesh:3x3", 9), 9, 4) == [1, 5, 7, 3, 4]
    assert ports_of(Topology.parse("mesh:2x2", 4), 4, 1) == [None, None, 3, 0, 1]
    assert ports_of(Topology.parse("ring", 4), 4, 0) == [1, 3, 0]
    assert ports_of(Topology.parse("switch", 3), 3, SWITCH) == [0, 1, 2]
    assert ports_of(Topology.parse("switch", 3), 3, 2) == [SWITCH, 2]
