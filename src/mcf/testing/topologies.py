"""`check_topology`: a topology of your own is judged as ours are."""

from collections.abc import Callable
from itertools import product

from mcf.cluster import Topology
from mcf.testing.expect import expect


def check_topology(spec: str | Callable[[int], Topology], *, max_nodes: int = 8) -> None:
    """Judge a topology: routes and trees cross links only, reach what they should, and are as short as `hops`.

    `spec` is a name or a function from a number of nodes. Raises CheckFailed.
    """
    make = (lambda n: Topology.parse(spec, n)) if isinstance(spec, str) else spec
    for num_nodes in range(1, max_nodes + 1):
        topology = make(num_nodes)
        nodes = range(num_nodes)
        for a, b in product(nodes, nodes):
            _check_route(topology, a, b)
        for root in nodes:
            for dsts in ({root}, set(nodes), set(nodes) - {root}, {(root + num_nodes // 2) % num_nodes}):
                _check_tree(topology, root, dsts)


def _check_route(topology: Topology, a: int, b: int) -> None:
    case, route = f"{topology.name} of {topology.num_nodes}, {a} to {b}", topology.route(a, b)
    expect(not topology.has_link(a, a), case, "a node has a link to itself")
    expect(all(topology.has_link(*edge) for edge in route), case, f"route {route} crosses what is no link")
    walk = [a, *(edge[1] for edge in route)]
    joined = all(edge[0] == at for edge, at in zip(route, walk, strict=False))
    expect(joined and walk[-1] == b, case, f"route {route} is no walk to the end")
    expect(len(set(walk)) == len(walk), case, f"route {route} visits a node twice")
    expect(topology.hops(a, b) == len(route), case, "hops and route differ")


def _check_tree(topology: Topology, root: int, dsts: set[int]) -> None:
    case, tree = f"{topology.name} of {topology.num_nodes}, {root} to {sorted(dsts)}", topology.multicast(root, dsts)
    depth = {root: 0}
    for a, b in tree:
        expect(topology.has_link(a, b), case, f"{a}>{b} is no link")
        expect(a in depth and b not in depth, case, f"{a}>{b} is out of order in {tree}")
        depth[b] = depth[a] + 1
    expect(dsts <= set(depth), case, f"the tree {tree} does not reach all")
    far = [d for d in dsts if depth[d] != topology.hops(root, d)]
    expect(not far, case, f"nodes {far} are reached by detours")
