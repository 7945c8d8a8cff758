"""Topologies: links, routes, multicast trees, nearest nodes; and what a cluster refuses."""

import dataclasses
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.cluster import Cluster, LinkSpec, NodeSpec, Topology
from mcf.errors import UnknownNameError, UserError

NAMES = st.sampled_from(["switch", "ring", "mesh", "torus", "tree", "ring:one-way"])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Topology, int, list[int]]:
    num_nodes = draw(st.integers(1, 12))
    node = st.integers(0, num_nodes - 1)
    return Topology.parse(draw(NAMES), num_nodes), draw(node), draw(st.lists(node, max_size=12))


def distances(topology: Topology, root: int) -> dict[int, int]:
    """Breadth first over has_link: the slow law for hops."""
    found, queue = {root: 0}, deque([root])
    while queue:
        at = queue.popleft()
        for node in range(topology.num_nodes):
            if topology.has_link(at, node) and node not in found:
                found[node] = found[at] + 1
                queue.append(node)
    return found


@given(cases())
def test_routes_are_shortest_and_use_links(case: tuple[Topology, int, list[int]]) -> None:
    topology, root, dsts = case
    far = distances(topology, root)
    assert len(far) == topology.num_nodes
    for dst in dsts:
        route = topology.route(root, dst)
        assert len(route) == topology.hops(root, dst) == far[dst]
        assert all(topology.has_link(*edge) for edge in route)
        ends = [root, *(b for _, b in route)]
        assert [a for a, _ in route] == ends[:-1]
        assert ends[-1] == dst


@given(cases())
def test_multicast_is_a_tree_parents_first(case: tuple[Topology, int, list[int]]) -> None:
    topology, root, dsts = case
    reached = {root}
    for a, b in topology.multicast(root, dsts):
        assert a in reached
        assert b not in reached
        assert topology.has_link(a, b)
        reached.add(b)
    assert set(dsts) <= reached
    on_the_way = {end for dst in dsts for edge in topology.route(root, dst) for end in edge}
    assert reached == {root} | on_the_way


@given(cases())
def test_nearest_has_fewest_hops_then_the_lowest_distance_upwards(case: tuple[Topology, int, list[int]]) -> None:
    topology, node, candidates = case
    if not candidates:
        with pytest.raises(UserError, match="no candidates"):
            topology.nearest(node, candidates)
        return
    best = topology.nearest(node, candidates)
    assert best in candidates
    for other in candidates:
        rank, least = ((topology.hops(node, n), (n - node) % topology.num_nodes) for n in (other, best))
        assert least <= rank


@given(cases())
def test_links_are_what_has_link_says(case: tuple[Topology, int, list[int]]) -> None:
    topology, root, _ = case
    assert {b for a, b in topology.links if a == root} == {
        b for b in range(topology.num_nodes) if topology.has_link(root, b)
    }
    assert all(a != b for a, b in topology.links)


def test_ring_examples() -> None:
    ring = Topology.parse("ring", 4)
    assert ring.links == {(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2), (3, 0), (0, 3)}
    assert ring.route(0, 2) == ((0, 1), (1, 2))
    assert ring.route(0, 3) == ((0, 3),)
    assert ring.route(1, 1) == ()
    assert ring.multicast(0, [1, 2, 3]) == ((0, 1), (0, 3), (1, 2))
    assert ring.nearest(0, [3, 1]) == 1
    assert ring.nearest(0, [2, 3]) == 3


def test_switch_examples() -> None:
    switch = Topology.parse("switch", 4)
    assert len(switch.links) == 12
    assert switch.multicast(2, [0, 1, 3]) == ((2, 3), (2, 0), (2, 1))
    assert switch.multicast(2, [2]) == ()
    assert switch.nearest(2, [0, 1]) == 0
    assert switch.nearest(2, {2, 3}) == 2


def test_two_nodes_have_one_link_each_way_and_one_node_has_none() -> None:
    for name in ("switch", "ring"):
        assert Topology.parse(name, 2).links == {(0, 1), (1, 0)}
        assert Topology.parse(name, 1).links == frozenset()


def test_a_link_with_a_node_that_does_not_exist_is_no_link() -> None:
    ring = Topology.parse("ring", 4)
    assert not any(ring.has_link(a, b) for a, b in [(0, 4), (4, 0), (-1, 0), (0, -1)])


@pytest.mark.parametrize("name", ["switch", "ring"])
def test_a_thousand_nodes_answer_without_a_million_links(name: str) -> None:
    topology = Topology.parse(name, 1024)
    assert topology.has_link(1023, 0)
    assert not topology.has_link(5, 5)
    assert topology.hops(0, 512) == (1 if name == "switch" else 512)
    assert len(topology.multicast(3, range(1024))) == 1023
    assert {field.name for field in dataclasses.fields(topology)} == {"name", "num_nodes"}


def test_topologies_are_frozen_and_equal_by_value() -> None:
    assert Topology.parse(" ring ", 3) == Topology(name="ring", num_nodes=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        Topology.parse("ring", 3).num_nodes = 4  # type: ignore[misc]


def test_an_unknown_topology_suggests_the_nearest() -> None:
    with pytest.raises(
        UnknownNameError, match=r"did you mean 'ring'.*known are graph, mesh, ring, switch, torus, tree"
    ):
        Topology.parse("rnig", 4)


@pytest.mark.parametrize("num_nodes", [0, -1, True, 2.0, "4"])
def test_fewer_than_one_node_is_refused(num_nodes: object) -> None:
    with pytest.raises(UserError, match="at least 1"):
        Topology.parse("ring", num_nodes)  # type: ignore[arg-type]


@pytest.mark.parametrize("ends", [(0, 4), (4, 0), (-1, 2)])
def test_a_route_to_a_node_that_does_not_exist_is_refused(ends: tuple[int, int]) -> None:
    with pytest.raises(UserError, match="expected a node from 0 to 3"):
        Topology.parse("ring", 4).route(*ends)


def test_a_cluster_has_one_spec_for_each_node() -> None:
    cluster = Cluster.uniform("switch", 3, kv_budget_bytes=4096)
    assert cluster.num_nodes == 3
    assert cluster.kv_budgets == (4096, 4096, 4096)
    with pytest.raises(UserError, match="got 2 node specs for a ring of 3 nodes"):
        Cluster(nodes=(NodeSpec(), NodeSpec()), topology=Topology.parse("ring", 3))


def test_unequal_budgets_stay_in_node_order() -> None:
    nodes = (NodeSpec(kv_budget_bytes=10), NodeSpec(), NodeSpec(kv_budget_bytes=5))
    assert Cluster(nodes=nodes, topology=Topology.parse("ring", 3)).kv_budgets == (10, None, 5)


@pytest.mark.parametrize(
    "build",
    [
        lambda: NodeSpec(kv_budget_bytes=0),
        lambda: NodeSpec(kv_budget_bytes=-5),
        lambda: LinkSpec(rate_bits_s=0.0),
        lambda: LinkSpec(rate_bits_s=float("nan")),
        lambda: LinkSpec(rate_bits_s=float("inf")),
        lambda: LinkSpec(latency_s=-1.0),
        lambda: LinkSpec(latency_s=float("nan")),
        lambda: Cluster.uniform("ring", 0),
    ],
)
def test_impossible_hardware_is_refused(build) -> None:
    with pytest.raises(UserError, match="expected"):
        build()
