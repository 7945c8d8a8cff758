"""Meshes, tori, trees, one-way rings and graphs: judged as anybody's, known cases by hand, policies on them."""

from itertools import pairwise

import pytest

from mcf.cluster import Cluster, LinkSpec, Topology, disjoint_ways, facts, replanned, tree_numbers
from mcf.cluster.facts import MAX_EXACT_NODES
from mcf.cluster.names import read_links, write_links
from mcf.cluster.shapes import Graph
from mcf.cluster.trees import link_loads
from mcf.errors import LawError, UserError
from mcf.policies import NAMES, plan
from mcf.schedule import from_bytes, parse, to_bytes, unicast, verify
from mcf.schedule.steps import PREFILL, RECV, SEND
from mcf.schedule.text import dump
from mcf.testing import CheckFailed, check_policy, check_topology
from plans import pairs_of, request

OTHERS = {"mesh:3x2": 6, "torus:3x3": 9, "tree": 7, "graph:0-1,1-2,2>3,3>0": 4, "ring:one-way": 5, "mesh:3x3~4-5": 9}


@pytest.mark.parametrize(("spec", "num_nodes"), [*OTHERS.items(), ("mesh:4x4", 16), ("torus:4x2", 8), ("mesh:1x5", 5)])
def test_given_sizes_are_topologies_too(spec: str, num_nodes: int) -> None:
    check_topology(spec, least_nodes=num_nodes, max_nodes=num_nodes)


def test_what_is_no_topology_is_not_green() -> None:
    class Detour(Topology):
        def hops(self, a: int, b: int) -> int:
            return super().hops(a, b) + (a == 0 and b == 2)

    with pytest.raises(CheckFailed, match="hops"):
        check_topology(lambda n: Detour(name="ring", num_nodes=n))


def test_a_mesh_by_hand() -> None:
    """3 wide, 2 high: 0 1 2 above 3 4 5."""
    mesh = Topology.parse("mesh:3x2", 6)
    assert mesh.neighbours(1) == [2, 0, 4]
    assert mesh.route(0, 5) == ((0, 1), (1, 2), (2, 5))
    assert mesh.route(0, 5, tree=1) == ((0, 3), (3, 4), (4, 5))
    assert mesh.multicast(3, [2, 4], tree=1) == ((3, 4), (3, 0), (0, 1), (1, 2))
    assert mesh.cycle == [0, 1, 2, 5, 4, 3]
    torus = Topology.parse("torus:4x4", 16)
    assert torus.route(0, 15) == ((0, 3), (3, 15))
    assert torus.route(0, 2) == ((0, 1), (1, 2))  # as far both ways: upwards


def test_a_tree_and_a_one_way_ring_by_hand() -> None:
    tree = Topology.parse("tree", 7)
    assert tree.route(3, 6) == ((3, 1), (1, 0), (0, 2), (2, 6))
    assert tree.cycle == [0, 1, 3, 4, 2, 5, 6]
    assert Topology.parse("ring:one-way", 5).route(1, 0) == ((1, 2), (2, 3), (3, 4), (4, 0))


@pytest.mark.parametrize("spec", ["mesh:4x4", "mesh:3x4", "mesh:4x3", "torus:5x4", "mesh:2x2"])
def test_a_round_trip_over_a_grid_with_an_even_side_uses_links_alone(spec: str) -> None:
    width, height = (int(side) for side in spec.split(":")[1].split("x"))
    topology = Topology.parse(spec, width * height)
    cycle = topology.cycle
    assert all(topology.has_link(a, b) for a, b in pairwise([*cycle, cycle[0]]))


def test_ways_avoid_links_that_are_out_and_keep_their_preference() -> None:
    mesh = Topology.parse("mesh:4x4", 16)
    avoiding = mesh.without([(5, 6)])
    assert avoiding.name == "mesh:4x4~5>6"
    assert avoiding.without([(6, 5)]).name == "mesh:4x4~5-6"
    assert not avoiding.has_link(5, 6)
    assert avoiding.has_link(6, 5)
    assert (5, 6) in mesh.route(4, 7)
    assert (5, 6) not in avoiding.route(4, 7)
    # everywhere else nothing has changed
    for a, b, tree in ((0, 15, 0), (0, 15, 1), (12, 3, 0), (6, 5, 0)):
        assert avoiding.route(a, b, tree=tree) == mesh.route(a, b, tree=tree)


def test_links_are_read_as_they_are_written() -> None:
    links = [(0, 1), (1, 0), (3, 2)]
    assert sorted(read_links(write_links(links))) == sorted(links)
    assert write_links(links) == "0-1,3>2"


@pytest.mark.parametrize(
    ("spec", "num_nodes", "says"),
    [
        ("mesh:4x3", 16, "got a mesh of 4x3 for 16 nodes: expected 12 nodes"),
        ("torus:0x3", 3, "expected torus:WIDTHxHEIGHT"),
        ("mesh:-1x3", 3, "expected mesh:WIDTHxHEIGHT"),
        ("ring:both", 3, "expected ring, ring:two-way or ring:one-way"),
        ("switch:2", 2, "expected switch alone"),
        ("tree:0", 3, "expected at least 1 child"),
        ("tree:0-1,1-2,2-0", 3, "closes a cycle"),
        ("tree:0-1", 3, "without a way from node 0 to node 2"),
        ("graph:0>1,1>2", 3, "without a way from node 1 to node 0"),
        ("graph", 3, "without links"),
        ("graph:1-1", 2, "a link from node 1 to itself"),
        ("graph:0-7", 2, "expected nodes from 0 to 1"),
        ("graph:0_1", 2, "got '0_1' as a link"),
        ("mesh:2x2~0-3", 4, "expected a link of the topology"),
        ("ring:one-way~1>2", 4, "without a way"),
        ("mseh:2x2", 4, r"unknown topology 'mseh': did you mean 'mesh'\?"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(spec: str, num_nodes: int, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        Topology.parse(spec, num_nodes)
    assert "\n" not in str(caught.value)


# --- facts ---


@pytest.mark.parametrize(
    ("spec", "num_nodes", "diameter", "degrees", "bisection"),
    [
        ("mesh:4x4", 16, 6, (2, 4), 4),
        ("mesh:8x4", 32, 10, (2, 4), 4),
        ("torus:4x4", 16, 4, (4, 4), 8),
        ("ring", 8, 4, (2, 2), 2),
        ("ring:one-way", 8, 7, (1, 1), 1),
        ("switch", 9, 1, (1, 1), 4),
        ("tree", 7, 4, (1, 3), 1),
        ("tree", 15, 6, (1, 3), 1),
        ("switch", 1, 0, (0, 0), 0),
    ],
)
def test_facts(spec: str, num_nodes: int, diameter: int, degrees: tuple[int, int], bisection: int) -> None:
    got = facts(Topology.parse(spec, num_nodes))
    assert (got.diameter, (got.min_in, got.max_in), got.bisection) == (diameter, degrees, bisection)


def test_the_mean_distance_of_a_mesh_is_known() -> None:
    """(width + height) / 3 for a square mesh, over ordered pairs of different nodes."""
    assert facts(Topology.parse("mesh:6x6", 36)).mean_hops == pytest.approx(4)
    assert MAX_EXACT_NODES < 36


@pytest.mark.parametrize(
    ("spec", "num_nodes", "ends", "ways"),
    [("mesh:4x4", 16, (0, 15), 2), ("mesh:4x4", 16, (5, 10), 4), ("tree", 7, (3, 6), 1), ("torus:3x3", 9, (0, 4), 4),
     ("ring", 6, (0, 3), 2), ("switch", 5, (0, 1), 4), ("ring:one-way", 4, (2, 1), 1), ("ring", 4, (1, 1), 0)],
)  # fmt: skip
def test_ways_that_share_no_link(spec: str, num_nodes: int, ends: tuple[int, int], ways: int) -> None:
    assert disjoint_ways(Topology.parse(spec, num_nodes), *ends) == ways


# --- trees and load ---


def test_two_trees_half_each_fill_both_links_into_a_corner() -> None:
    """All nodes of a mesh send to all: by x first alone, 12 of 15 payloads enter a corner by one of its links."""
    mesh, nodes = Topology.parse("mesh:4x4", 16), list(range(16))
    alone = link_loads(mesh, [(n, 0) for n in nodes], nodes)
    first = tree_numbers(mesh, nodes, nodes)
    both = link_loads(mesh, list(zip(nodes, first, strict=True)), nodes)
    assert (alone[1, 0], alone[4, 0]) == (3, 12)
    assert sorted((both[1, 0], both[4, 0])) == [7, 8]
    assert sum(first) == 8
    assert max(both.values()) < max(alone.values())
    assert sum(both.values()) == sum(alone.values()) == 16 * 15


def test_a_slow_link_is_planned_around_and_one_without_another_way_stays() -> None:
    usual = LinkSpec(rate_bits_s=1e9)
    mesh = Cluster.uniform("mesh:4x4", 16, link=usual).with_links({(5, 6): LinkSpec(rate_bits_s=1e8)})
    assert mesh.slow_links() == [(5, 6)]
    assert replanned(mesh).topology.name == "mesh:4x4~5>6"
    assert replanned(Cluster.uniform("mesh:4x4", 16, link=usual)).topology.name == "mesh:4x4"
    tree = Cluster.uniform("tree", 3, link=usual).with_links({(0, 1): LinkSpec(rate_bits_s=1e8)})
    assert replanned(tree).topology.name == "tree"
    with pytest.raises(UserError, match="expected a topology with other ways"):
        Cluster.uniform("switch", 3).around([(0, 1)])


def test_a_speed_needs_a_link() -> None:
    spec = LinkSpec(rate_bits_s=1e9)
    with pytest.raises(UserError, match="got the speed of 0>3: expected a link"):
        Cluster.uniform("mesh:2x2", 4).with_links({(0, 3): spec})
    switch = Cluster.uniform("switch", 4).with_links({(-1, 3): spec})
    assert switch.link_of(-1, 3) == spec
    assert switch.link_of(3, -1) == LinkSpec()


# --- schedules on them ---


@pytest.mark.parametrize(("name", "topology"), [(name, topology) for name in NAMES for topology in OTHERS])
def test_every_policy_is_legal_on_every_topology(name: str, topology: str) -> None:
    asked = request(OTHERS[topology], 300, 100, topology=topology)
    sched = plan(name, asked)
    verify(sched)
    verify(unicast(sched))
    assert parse(dump(sched)) == from_bytes(to_bytes(sched)) == sched


@pytest.mark.parametrize("name", ["ring", "gather", "mars-paper", "pass-q", "pd"])
def test_policies_are_right_on_a_mesh(name: str) -> None:
    check_policy(lambda asked: plan(name, asked), [request(4, 23, 8, topology="mesh:2x2", max_new_tokens=2)])


@pytest.mark.parametrize(("name", "num_nodes"), pairs_of(["gather", "full", "mars-paper", "ring", "zigzag"], [4]))
def test_kv_moves_over_links_alone(name: str, num_nodes: int) -> None:
    """These policies write each hop themselves: no payload passes a node without stopping there."""
    sched = plan(name, request(num_nodes, 300, 100, topology="mesh:2x2"))
    s = sched.steps
    mesh = Topology.parse("mesh:2x2", 4)
    for row in ((s["kind"] == SEND) & (s["stage"] == PREFILL)).nonzero()[0].tolist():
        assert all(mesh.has_link(int(s["node"][row]), b) for b in sched.receivers(row))


def test_half_of_the_blocks_go_x_first_and_half_y_first() -> None:
    """In a corner of a mesh, over two chunks, about as many blocks arrive by each link."""
    sched = plan("full", request(16, 512, 256, topology="mesh:4x4"))
    s = sched.steps
    into = s[(s["kind"] == RECV) & (s["node"] == 0) & (s["stage"] == PREFILL)]
    sides = [int((into["dst"] == n).sum()) for n in (1, 4)]
    assert sum(sides) == 30
    assert abs(sides[0] - sides[1]) <= 2


def test_a_hop_over_a_link_that_is_out_breaks_v8() -> None:
    sched = plan("gather", request(9, 100, 50, topology="mesh:3x3"))
    verify(sched)
    around = plan("gather", request(9, 100, 50, topology="mesh:3x3~4-5"))
    for law, meta, steps in (("V8", around.meta, sched), (None, sched.meta, around)):
        mixed = steps.replace(meta=meta)
        if law is None:
            verify(mixed)
            continue
        with pytest.raises(LawError, match=r"is no link of the topology mesh:3x3~4-5") as caught:
            verify(mixed)
        assert caught.value.law == law


def test_a_graph_answers_like_the_shape_that_it_copies() -> None:
    mesh = Topology.parse("mesh:3x3", 9)
    copy = Graph(9, mesh.links, order=lambda a, tree: _ordered(a, tree))
    for a in range(9):
        for b in range(9):
            assert a == b or [copy.path(a, b, tree) for tree in (0, 1)] == [
                [a, *(end for _, end in mesh.route(a, b, tree=tree))] for tree in (0, 1)
            ]


def _ordered(a: int, tree: int) -> list[int]:
    beside = [n for n in (a + 1, a - 1) if n // 3 == a // 3]
    above = [n for n in (a + 3, a - 3) if 0 <= n < 9]
    return beside + above if tree == 0 else above + beside
