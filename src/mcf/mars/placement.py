"""Where copies live: which nodes get a new one, which give one up, and who fetches from whom."""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mcf.cluster import Edge, Topology

Hops = NDArray[np.int64]
Links = tuple[Edge, ...]


def hop_matrix(topology: Topology) -> Hops:
    """[N, N] links from one node to another."""
    return np.array([topology.distances(a) for a in range(topology.num_nodes)], dtype=np.int64)


def h_near(holders: Collection[int], hops: Hops) -> float:
    """Mean links from a node without a copy to the nearest node that has one (eq. 19); 0 where all have one."""
    others = [n for n in range(len(hops)) if n not in holders]
    return float(hops[list(holders)][:, others].min(0).mean()) if others else 0.0


def tree_hops(topology: Topology, owner: int, copies: Collection[int]) -> float:
    """Links of the multicast tree per copy (eq. 17: h_dis): at most the mean distance from the owner."""
    wanted = set(copies) - {owner}
    return len(topology.multicast(owner, wanted)) / len(wanted) if wanted else 0.0


def spread(owner: int, hops: Hops) -> list[int]:
    """All nodes, owner first, in the order in which they get copies: each next one brings a copy nearest to the most.

    Greedy: least sum of hops from every node to its nearest copy; then the farthest from any copy; then the first after
    the owner, so that on a switch the owners' copies fall evenly on the nodes.
    """
    N = len(hops)
    if (hops[~np.eye(N, dtype=bool)] == 1).all():
        return [(owner + n) % N for n in range(N)]  # all are equal: the greedy choice is the next node
    order, nearest = [owner], hops[:, owner].copy()
    while len(order) < N:
        sums = np.minimum(nearest[:, None], hops).sum(0)
        left = [n for n in range(N) if n not in order]
        chosen = min(left, key=lambda n: (sums[n], -nearest[n], (n - owner) % N))
        order.append(chosen)
        nearest = np.minimum(nearest, hops[:, chosen])
    return order


def targets(order: Sequence[int], r: int, roomy: Collection[int]) -> list[int]:
    """The first r - 1 nodes after the owner in `order` that have room for one more copy."""
    return [n for n in order[1:] if n in roomy][: r - 1]


def give_up(owner: int, holders: Iterable[int], r: int, hops: Hops) -> list[int]:
    """Which copies go so that r remain, the owner's among them: the farthest from the owner first."""
    N = len(hops)
    copies = sorted((n for n in holders if n != owner), key=lambda n: (hops[owner, n], (n - owner) % N))
    return copies[max(r - 1, 0) :][::-1]


def nearest_links(topology: Topology, holders: Collection[int], needers: Iterable[int], *, tree: int = 0) -> Links:
    """Links over which `needers` get a block, each from the nearest copy: a forest rooted in `holders`, parents first.

    Nodes on the way receive it too; none of them holds a copy, or it would be the nearer one. Ties between copies go to
    the lowest (copy - needer) mod N; `tree` chooses among shortest ways.
    """
    N = topology.num_nodes
    wanted = sorted(set(needers) - set(holders))
    sources = {n: min(holders, key=lambda held: (topology.hops(held, n), (held - n) % N)) for n in wanted}
    reached, links = set(holders), []
    for n in sorted(wanted, key=lambda n: (topology.hops(sources[n], n), (n - sources[n]) % N)):
        for a, b in topology.route(sources[n], n, tree=tree):
            if b not in reached:
                reached.add(b)
                links.append((a, b))
    return tuple(links)
