"""Which tree each block takes: x first or y first, so that the links are loaded as evenly as the shape allows."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache

from mcf.cluster.specs import Cluster
from mcf.cluster.topology import Edge, Topology


def tree_numbers(topology: Topology, roots: Sequence[int], dsts: Collection[int]) -> list[int]:
    """A tree number for each root's multicast to dsts: greedy, the one whose busiest link ends up the least loaded.

    Loads are counted as if every root sent one payload; ties go to the fewer crossings of loaded links, then turn by
    turn. All 0 where there is only one tree.
    """
    if topology.num_trees == 1:
        return [0] * len(roots)
    return list(_tree_numbers(topology, tuple(roots), frozenset(dsts)))


@lru_cache(maxsize=64)
def _tree_numbers(topology: Topology, roots: tuple[int, ...], dsts: frozenset[int]) -> tuple[int, ...]:
    loads, out = Counter[Edge](), []
    for turn, root in enumerate(roots):
        trees = [topology.multicast(root, dsts - {root}, tree=tree) for tree in range(topology.num_trees)]
        ranks = [(*_load(loads, links), (tree + turn) % topology.num_trees) for tree, links in enumerate(trees)]
        chosen = ranks.index(min(ranks))
        loads.update(trees[chosen])
        out.append(chosen)
    return tuple(out)


def _load(loads: Counter[Edge], links: Sequence[Edge]) -> tuple[int, int]:
    after = [loads[edge] + 1 for edge in links]
    return max(after, default=0), sum(n * n for n in after)


def link_loads(topology: Topology, trees: Sequence[tuple[int, int]], dsts: Collection[int]) -> dict[Edge, int]:
    """Payloads over each link when every (root, tree number) sends one to dsts."""
    loads = Counter[Edge]()
    for root, tree in trees:
        loads.update(topology.multicast(root, set(dsts) - {root}, tree=tree))
    return dict(loads)


def replanned(cluster: Cluster, *, below: float = 0.5) -> Cluster:
    """The cluster as a policy should see it when links have become slow: planned around those that are too slow.

    A link stays in use where there is no other way.
    """
    return cluster.around(cluster.slow_links(below))
