"""Routers joined as a mesh: what is sent arrives, all of it and once, and a circle of routes would have stopped it."""

import random
from collections import Counter

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import ScheduleError
from mcf.rtl.golden.packet import Packet, cut
from mcf.rtl.routes import Mesh, Tables, spread
from routing import SMALL, meshed


def routes(rng: random.Random, tables: Tables) -> dict[int, tuple[int, frozenset[int]]]:
    """Route -> its root and members: from each node one to each other node, one to all, one to some."""
    nodes, topology = range(tables.mesh.num_nodes), tables.mesh.topology
    out = {}
    for root in nodes:
        some = frozenset(rng.sample(nodes, 3))
        for members in (*(frozenset({node}) for node in nodes), frozenset(nodes), some):
            number = tables.add(spread(tables.mesh, root, topology.multicast(root, members), members))
            out[number] = (root, members)
    tables.check()
    return out


@pytest.mark.parametrize(("width", "count", "pause", "stall"), [(2, 80, 0.1, 0.2), (4, 80, 0.0, 0.0)])
def test_copies_sent_are_copies_delivered(width: int, count: int, pause: float, stall: float) -> None:
    rng = random.Random(width + count)
    tables = Tables(mesh=Mesh(width=width, height=2))
    ways = routes(rng, tables)
    sent: dict[int, list[Packet]] = {node: [] for node in range(2 * width)}
    want: dict[int, Counter[Packet]] = {node: Counter() for node in sent}
    for number in range(count):
        route = rng.choice(list(ways))
        root, members = ways[route]
        payload = [rng.getrandbits(128) for _ in range(rng.choice((0, 2, 10)))]
        packet = Packet.of(dict(route_id=route, src=root, block=number), payload)
        if rng.random() < 0.1:
            packet = Packet(header=packet.header, payload=(*payload[:-1], 1, 2, 3))  # too long, never delivered
        else:
            for member in members:
                want[member][packet] += 1
        sent[root].append(packet)
    beats = sum(len(packet.payload) + 1 for copies in want.values() for packet in copies.elements())
    sizes = {**SMALL, "routes": 128}
    bench = meshed(tables, sent, cycles=1500, want=beats, sizes=sizes, pause=pause, stall=stall, seed=count)
    for node, copies in want.items():
        got = cut(bench.items(f"out{node}"))
        assert Counter(got) == copies
        for route in ways:
            numbers = [packet.field("block") for packet in got if packet.field("route_id") == route]
            assert numbers == sorted(numbers)


@pytest.mark.parametrize("is_circle", [False, True])
def test_routes_in_a_circle_stop_under_load_and_others_do_not(is_circle: bool) -> None:
    tables = Tables(mesh=Mesh(width=2, height=2))
    ways = [(0, 1, 3), (1, 3, 2), (3, 2, 0), (2, 0, 1)] if is_circle else [(0, 1, 3), (1, 0, 2), (3, 2, 0), (2, 3, 1)]
    for a, b, c in ways:
        tables.add(spread(tables.mesh, a, [(a, b), (b, c)], [c]))
    sent = {
        way[0]: [Packet.of(dict(route_id=route, block=n), range(10)) for n in range(25)]
        for route, way in enumerate(ways, start=1)
    }
    bench = meshed(tables, sent, cycles=450 if is_circle else 700, want=4 * 25 * 11)
    arrived = sum(len(cut(bench.items(f"out{node}"))) for node in range(4))
    if is_circle:
        assert arrived < 100
        with pytest.raises(ScheduleError, match="wait for each other in a circle"):
            tables.check()
    else:
        tables.check()
        assert arrived == 100
