"""Route tables: every member is reached once, reductions come together, circles are refused."""

import random
from collections import Counter
from collections.abc import Mapping

import pytest

from mcf.errors import ScheduleError
from mcf.rtl.entry import NUM_ROUTES, Entry, Port, unpack
from mcf.rtl.golden.packet import Packet
from mcf.rtl.golden.router import RouterModel
from mcf.rtl.routes import Mesh, Tables, check_acyclic, gather, spread

MESH = Mesh(width=4, height=3)


def carried(mesh: Mesh, entries: Mapping[int, Entry], node: int) -> Counter[int]:
    """Where copies of a packet that enters at `node` are delivered, by the routers' golden model."""
    tables = {n: {7: entry.pack()} for n, entry in entries.items()}
    delivered, under_way = Counter[int](), [(node, Port.LOCAL)]
    packet = Packet.of({"route_id": 7})
    while under_way:
        at, port = under_way.pop()
        model = RouterModel(table=tables.get(at, {}))
        for out, _ in model.push(port, packet):
            beyond = mesh.neighbour(at, out)
            if out == Port.LOCAL:
                delivered[at] += 1
            else:
                assert beyond is not None
                under_way.append((beyond, out.opposite))
        assert not sum(model.dropped.values())
    return delivered


@pytest.mark.parametrize("tree", [0, 1])
def test_a_route_reaches_each_member_once_and_nobody_else(tree: int) -> None:
    rng = random.Random(tree)
    for _ in range(40):
        root = rng.randrange(12)
        members = set(rng.sample(range(12), rng.randrange(1, 12)))
        edges = MESH.topology.multicast(root, members, tree=tree)
        assert carried(MESH, spread(MESH, root, edges, members), root) == Counter(members)


def test_a_reduction_climbs_one_hop_at_a_time_and_ends_at_its_root() -> None:
    entries = gather(MESH, 5, MESH.topology.multicast(5, range(12)))
    assert carried(MESH, entries, 5) == Counter([5])
    for node in set(range(12)) - {5}:
        (parent,) = carried(MESH, entries, node)
        assert MESH.topology.hops(parent, 5) == MESH.topology.hops(node, 5) - 1
    children = sum(unpack(entry.pack())["children"].bit_count() for entry in entries.values())
    assert children == 11


@pytest.mark.parametrize("tree", [0, 1])
def test_ways_and_trees_of_one_order_never_wait_in_a_circle(tree: int) -> None:
    topology = MESH.topology
    ways = [spread(MESH, a, topology.route(a, b, tree=tree), [b]) for a in range(12) for b in range(12)]
    trees = [spread(MESH, a, topology.multicast(a, range(12), tree=tree), range(12)) for a in range(12)]
    climbs = [gather(MESH, a, topology.multicast(a, range(12), tree=1 - tree)) for a in range(12)]
    check_acyclic(MESH, ways + trees + climbs)


def test_four_routes_round_a_square_are_refused() -> None:
    mesh = Mesh(width=2, height=2)
    tables = Tables(mesh=mesh)
    for a, b, c in ((0, 1, 3), (1, 3, 2), (3, 2, 0)):
        tables.add(spread(mesh, a, [(a, b), (b, c)], [c]))
    tables.check()
    tables.add(spread(mesh, 2, [(2, 0), (0, 1)], [1]))
    with pytest.raises(ScheduleError, match=r"circle \(.*0 > 1.*\): expected none"):
        tables.check()


def test_tables_number_routes_from_1_and_say_when_they_are_full() -> None:
    mesh = Mesh(width=32, height=32)
    tables = Tables(mesh=mesh)
    for node in range(NUM_ROUTES - 1):
        assert tables.add(spread(mesh, node, [], [node])) == node + 1
    assert tables.add(spread(mesh, 3, [], [3])) == 4
    assert unpack(tables.words(3)[4]) == dict(out_mask=16, in_port=4, parent=4, children=0, valid=1)
    tables.check()
    tables.add(spread(mesh, 1023, [], [1023]))
    with pytest.raises(ScheduleError, match="got 1024 routes: a router's table holds 1023, 1 fewer"):
        tables.check()


@pytest.mark.parametrize(
    ("root", "edges", "members", "said"),
    [
        (0, [(0, 5)], [5], "hop from node 0 to node 5: expected neighbours of the 4x3 mesh"),
        (0, [(0, 12)], [12], "hop from node 0 to node 12"),
        (0, [(1, 2)], [2], "hop 1 > 2 in a route from node 0: expected a tree"),
        (0, [(0, 1), (1, 5), (0, 4), (4, 5)], [5], "hop 4 > 5 in a route from node 0: expected a tree"),
        (0, [(0, 1)], [2], "does not reach node 2"),
    ],
)
def test_what_is_no_tree_is_refused(root: int, edges: list[tuple[int, int]], members: list[int], said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        spread(MESH, root, edges, members)


def test_meshes_that_the_header_cannot_carry_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"mesh of 33x2: expected 1 to 32 .*, 1 fewer, .*\(1,024 nodes\)"):
        Mesh(width=33, height=2)
    with pytest.raises(ScheduleError, match="mesh of 0x2: expected 1 to 32 nodes on each side, which is"):
        Mesh(width=0, height=2)


def test_entries_that_turn_back_are_refused() -> None:
    with pytest.raises(ScheduleError, match="in and out by EAST"):
        Entry(in_port=Port.EAST, outs=frozenset({Port.EAST, Port.LOCAL}))
    with pytest.raises(ScheduleError, match="children"):
        Entry(in_port=Port.LOCAL, outs=frozenset({Port.EAST}), children=frozenset({Port.LOCAL}))
