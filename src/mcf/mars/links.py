"""What the busiest link carries: on a switch a port; elsewhere a link of the trees and ways that payloads take."""

from collections import Counter
from itertools import pairwise

from mcf.cluster import Edge, Topology
from mcf.mars.form import Form

MOST_NODES = 128  # beyond it ways are not counted one by one: the mean over all links is taken


def worst_link_bytes(form: Form) -> int:
    """Bytes over the busiest link in one direction: exact on a switch, elsewhere for makers that are all alike."""
    topology, N = form.job.topology, form.job.N
    if N == 1:
        return 0
    if topology.is_switch:
        return int(max(form.into.max(), form.out_of.max()))
    if N > MOST_NODES:
        return round(form.traffic_bytes / sum(len(topology.neighbours(n)) for n in range(N)))
    return round(max(_loads(form, topology).values()))


def _loads(form: Form, topology: Topology) -> "Counter[Edge]":
    """Bytes over each link: what goes round, what spreads over trees, and states on ways of their own."""
    if form.policy in ("ring", "zigzag"):
        return _shared(form.traffic_bytes, _ways([*pairwise(topology.cycle), (topology.cycle[-1], topology.cycle[0])],
                                                 topology))  # fmt: skip
    nodes = range(topology.num_nodes)
    if form.policy == "pipeline":
        return _shared(form.traffic_bytes, _ways(list(pairwise(nodes)), topology))
    if form.policy == "pd":
        return _handed_over(form, topology)
    states = form.traffic["state"]
    trees: Counter[Edge] = Counter(
        edge
        for root in nodes
        for tree in range(topology.num_trees)
        for edge in topology.multicast(root, nodes, tree=tree)
    )
    spread = _shared(form.traffic_bytes - states, trees)
    return spread + _shared(states, _ways([(a, b) for a in nodes for b in nodes if a != b], topology))


def _handed_over(form: Form, topology: Topology) -> "Counter[Edge]":
    """Each maker's KV goes to all makers by a tree, and to the owners that its column falls to."""
    N, makers = topology.num_nodes, form.job.makers or topology.num_nodes // 2
    made = form.job.S * form.job.shape.kv_token_bytes / makers
    trees = Counter(edge for m in range(makers) for edge in topology.multicast(m, range(makers)))
    owners = _ways([(k * makers // (N - makers), makers + k) for k in range(N - makers)], topology)
    share = made * makers / (N - makers)
    return Counter({edge: made * trees[edge] + share * owners[edge] for edge in {*trees, *owners}})


def _ways(pairs: list[Edge], topology: Topology) -> "Counter[Edge]":
    """How many of the ways between pairs of nodes cross each link."""
    return Counter(edge for a, b in pairs for edge in topology.route(a, b))


def _shared(total: float, crossings: "Counter[Edge]") -> "Counter[Edge]":
    """Bytes of each link when so many are shared out by how often it is crossed."""
    unit = total / max(sum(crossings.values()), 1)
    return Counter({edge: unit * count for edge, count in crossings.items()})
