"""Numbers of a topology that bounds and reports use: diameter, mean distance, degrees, cuts, disjoint ways."""

from collections.abc import Collection
from dataclasses import dataclass

from mcf.cluster.names import shape_of
from mcf.cluster.shapes import Edge, Graph, Grid, Ring, Switch, breadth_first
from mcf.cluster.topology import Topology

MAX_EXACT_NODES = 14  # cuts of a graph are counted one by one up to here


@dataclass(frozen=True, kw_only=True)
class Facts:
    """`diameter` and `mean_hops` over ordered pairs of nodes; `min_in`, `max_in` links into a node (a switch: 1 port).

    `bisection`: directed links from one half of the nodes to the other, for the halves with the fewest (a switch: the
    ports of the smaller half). Exact for grids with an even longest side, rings, switches, and graphs up to
    MAX_EXACT_NODES nodes; else the fewest that were found.
    """

    diameter: int
    mean_hops: float
    min_in: int
    max_in: int
    bisection: int


def facts(topology: Topology) -> Facts:
    """Measure a topology, breadth first from every node.

    >>> facts(Topology.parse("mesh:4x4", 16))
    Facts(diameter=6, mean_hops=2.6666666666666665, min_in=2, max_in=4, bisection=4)
    """
    num_nodes = topology.num_nodes
    far = [topology.distances(root) for root in range(num_nodes)]
    into = in_degrees(topology)
    return Facts(
        diameter=max(map(max, far)),
        mean_hops=sum(map(sum, far)) / max(num_nodes * (num_nodes - 1), 1),
        min_in=min(into),
        max_in=max(into),
        bisection=bisection(topology),
    )


def in_degrees(topology: Topology) -> list[int]:
    """[N] links into each node; one port on a switch."""
    num_nodes = topology.num_nodes
    if topology.is_switch:
        return [int(num_nodes > 1)] * num_nodes
    out = [0] * num_nodes
    for a in range(num_nodes):
        for b in topology.neighbours(a):
            out[b] += 1
    return out


def crossing(topology: Topology, part: Collection[int]) -> list[Edge]:
    """Links that lead into a part of the nodes from the others; on a switch see the ports instead."""
    inside = set(part)
    outside = (n for n in range(topology.num_nodes) if n not in inside)
    return [(a, b) for a in outside for b in topology.neighbours(a) if b in inside]


def bisection(topology: Topology) -> int:
    """Directed links from one half of the nodes to the other, as few as were found (see Facts)."""
    num_nodes, shape = topology.num_nodes, shape_of(topology.name, topology.num_nodes)
    half = num_nodes // 2
    if num_nodes < 2:
        return 0
    if isinstance(shape, Switch):
        return half
    if isinstance(shape, Ring):
        return 1 if shape.one_way or num_nodes == 2 else 2
    if num_nodes <= MAX_EXACT_NODES:
        return min(_cut(topology, part) for part in _parts(num_nodes, half))
    halves = [list(range(half)), list(range(num_nodes - half, num_nodes))]
    if isinstance(shape, Grid):
        halves += [_by_columns(shape)[:half], _by_columns(shape)[num_nodes - half :]]
    if isinstance(shape, Graph):
        round_trip = topology.cycle * 2  # on a tree a stretch of it is a subtree, where there is one of that size
        halves += [round_trip[at : at + half] for at in range(num_nodes)]
        halves += [_near(topology, root)[:half] for root in range(num_nodes)]
    return min(_cut(topology, part) for part in halves)


def _cut(topology: Topology, part: Collection[int]) -> int:
    return len(crossing(topology, part))


def _parts(num_nodes: int, half: int) -> list[tuple[int, ...]]:
    """Halves of the nodes: of half the nodes rounded down, and of the rest of them."""
    nodes = range(num_nodes)
    masks = (mask for mask in range(1 << num_nodes) if mask.bit_count() in (half, num_nodes - half))
    return [tuple(n for n in nodes if mask >> n & 1) for mask in masks]


def _by_columns(shape: Grid) -> list[int]:
    return [y * shape.width + x for x in range(shape.width) for y in range(shape.height)]


def _near(topology: Topology, root: int) -> list[int]:
    far = topology.distances(root)
    return sorted(range(topology.num_nodes), key=lambda n: (far[n], n))


def disjoint_ways(topology: Topology, a: int, b: int) -> int:
    """How many ways from a to b share no link: the fewest links that cut b off from a (Menger; maximum flow).

    >>> disjoint_ways(Topology.parse("mesh:4x4", 16), 0, 15)
    2
    """
    if a == b:
        return 0
    ends = [set(topology.neighbours(n)) for n in range(topology.num_nodes)]
    count = 0
    while True:
        parents = breadth_first(topology.num_nodes, a, lambda n: sorted(ends[n]))
        if parents[b] < 0:
            return count
        count, at = count + 1, b
        while at != a:
            ends[parents[at]].discard(at)
            ends[at].add(parents[at])
            at = parents[at]
