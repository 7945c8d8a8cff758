"""`check_topology`: a topology of your own is judged as ours are."""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import product

from mcf.cluster import Edge, Topology
from mcf.testing.expect import expect


def check_topology(spec: str | Callable[[int], Topology], *, max_nodes: int = 8, least_nodes: int = 1) -> None:
    """Judge a topology for every number of nodes that it is said to allow.

    Links lead from one node to another; every node reaches every other; routes and trees of each tree number cross
    links only, visit no node twice, are shortest, and agree with each other; `hops`, `distances`, `nearest`, `links`
    and `neighbours` say the same; a round trip visits each node once; asking twice gives the same.

    `spec` is a name, a plug-in's too, or a function from a number of nodes. Raises CheckFailed, and UserError for what
    cannot be a topology.
    """
    make = (lambda n: Topology.parse(spec, n)) if isinstance(spec, str) else spec
    for num_nodes in range(least_nodes, max_nodes + 1):
        topology = make(num_nodes)
        expect(topology.num_nodes == num_nodes, topology.name, f"it has not the {num_nodes} nodes that were asked for")
        _check_links(topology)
        for root in range(num_nodes):
            _check_distances(topology, root)
            for tree in range(topology.num_trees):
                _check_root(topology, root, tree)
        expect(_said(topology) == _said(make(num_nodes)), _name(topology), "asked twice it gives other routes")


def _name(topology: Topology) -> str:
    return f"{topology.name} of {topology.num_nodes}"


def _check_links(topology: Topology) -> None:
    nodes = range(topology.num_nodes)
    said = {(a, b) for a, b in product(nodes, nodes) if topology.has_link(a, b)}
    expect(all(a != b for a, b in said), _name(topology), "a node has a link to itself")
    expect(said == topology.links, _name(topology), "`links` and `has_link` differ")
    listed = [(a, b) for a in nodes for b in topology.neighbours(a)]
    expect(sorted(said) == sorted(listed), _name(topology), "`neighbours` and `has_link` differ")
    outside = topology.has_link(0, topology.num_nodes) or topology.has_link(-1, 0)
    expect(not outside, _name(topology), "a node that does not exist has a link")
    expect(sorted(topology.cycle) == list(nodes), _name(topology), f"the round trip {topology.cycle} is none")


def _check_distances(topology: Topology, root: int) -> None:
    """Breadth first over `has_link`: the slow law for hops."""
    far, queue = {root: 0}, deque([root])
    while queue:
        at = queue.popleft()
        for node in range(topology.num_nodes):
            if node not in far and topology.has_link(at, node):
                far[node] = far[at] + 1
                queue.append(node)
    case = f"{_name(topology)}, from {root}"
    expect(len(far) == topology.num_nodes, case, "some node cannot be reached")
    expect([far[n] for n in range(len(far))] == topology.distances(root), case, "`distances` are not the shortest")
    wrong = [n for n in far if topology.hops(root, n) != far[n]]
    expect(not wrong, case, f"`hops` to {wrong} are not the shortest")


def _check_root(topology: Topology, root: int, tree: int) -> None:
    num_nodes = topology.num_nodes
    nodes = set(range(num_nodes))
    parents: dict[int, int] = {}
    for b in nodes:
        case, route = f"{_name(topology)}, {root} to {b}", topology.route(root, b, tree=tree)
        _check_route(topology, route, root, b, case)
        expect(all(parents.setdefault(y, x) == x for x, y in route), case, f"ways of tree {tree} part and meet again")
    for dsts in ({root}, nodes, nodes - {root}, {(root + num_nodes // 2) % num_nodes}):
        _check_tree(topology, root, dsts, tree, parents)


def _check_route(topology: Topology, route: Iterable[Edge], a: int, b: int, case: str) -> None:
    links = list(route)
    expect(all(topology.has_link(*edge) for edge in links), case, f"route {links} crosses what is no link")
    walk = [a, *(edge[1] for edge in links)]
    joined = all(edge[0] == at for edge, at in zip(links, walk, strict=False))
    expect(joined and walk[-1] == b, case, f"route {links} is no walk to the end")
    expect(len(set(walk)) == len(walk), case, f"route {links} visits a node twice")
    expect(topology.hops(a, b) == len(links), case, "hops and route differ")


def _check_tree(topology: Topology, root: int, dsts: set[int], number: int, parents: dict[int, int]) -> None:
    case = f"{_name(topology)}, {root} to {sorted(dsts)}"
    tree = topology.multicast(root, dsts, tree=number)
    depth = {root: 0}
    for a, b in tree:
        expect(topology.has_link(a, b), case, f"{a}>{b} is no link")
        expect(a in depth and b not in depth, case, f"{a}>{b} is out of order in {tree}")
        expect(parents[b] == a, case, f"{a}>{b} is not on the route to {b}")
        depth[b] = depth[a] + 1
    expect(dsts <= set(depth), case, f"the tree {tree} does not reach all")
    far = [d for d in dsts if depth[d] != topology.hops(root, d)]
    expect(not far, case, f"nodes {far} are reached by detours")
    if dsts:
        near = topology.nearest(root, dsts)
        expect(depth[near] == min(depth[d] for d in dsts), case, f"node {near} is not the nearest")


def _said(topology: Topology) -> list[tuple[Edge, ...]]:
    nodes = range(topology.num_nodes)
    trees = range(topology.num_trees)
    return [topology.route(a, b, tree=tree) for a, b, tree in product(nodes, nodes, trees)]
