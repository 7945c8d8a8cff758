"""Topologies: which node has a link to which, and the routes and trees over those links.

Nodes count from 0. A link is directed, `(a, b)`; a route is the tuple of its links, from the root outward. Links and
routes are computed, never stored: a switch of 1,024 nodes has a million links.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from mcf.cluster.names import NAMES, read_links, shape_of, write_links
from mcf.cluster.shapes import Edge, Shape, breadth_first
from mcf.errors import UserError

__all__ = ["NAMES", "Edge", "Topology"]


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The links between `num_nodes` nodes; `name` is the spec of `cluster.names`, for example `mesh:4x4`.

    Raises `UnknownNameError` for an unknown name and `UserError` for what the number of nodes does not allow.

    >>> ring = Topology.parse("ring", 4)
    >>> ring.route(0, 2), ring.hops(0, 3), ring.has_link(0, 2)
    (((0, 1), (1, 2)), 1, False)
    >>> mesh = Topology.parse("mesh:2x2", 4)
    >>> mesh.route(0, 3), mesh.route(0, 3, tree=1)
    (((0, 1), (1, 3)), ((0, 2), (2, 3)))
    """

    name: str
    num_nodes: int

    def __post_init__(self) -> None:
        """Check the name and the number of nodes."""
        if isinstance(self.num_nodes, bool) or not isinstance(self.num_nodes, int) or self.num_nodes < 1:
            raise UserError(f"got {self.num_nodes!r} nodes: expected a whole number of at least 1")
        shape_of(self.name, self.num_nodes)

    @classmethod
    def parse(cls, spec: str, num_nodes: int) -> "Topology":
        """Read a topology as it stands on a command line or in a schedule: `switch`, `ring`, `mesh:4x4`, ..."""
        return cls(name="".join(spec.split()), num_nodes=num_nodes)

    @property
    def links(self) -> frozenset[Edge]:
        """All directed links; N * (N - 1) of them for a switch, so ask `has_link` where N is large."""
        return frozenset((a, b) for a in range(self.num_nodes) for b in self._shape.neighbours(a, 0))

    @property
    def is_switch(self) -> bool:
        """Say whether nodes share ports of a switch: a multicast leaves its sender once."""
        return self.name == "switch"

    @property
    def has_relays(self) -> bool:
        """Say whether some nodes reach others only by way of third ones."""
        nodes = range(0 if self.is_switch else self.num_nodes)
        return any(len(self._shape.neighbours(a, 0)) < self.num_nodes - 1 for a in nodes)

    @property
    def num_trees(self) -> int:
        """How many trees of shortest ways there are to choose from: 2 on a grid (x first, y first), else 1."""
        return self._shape.num_trees

    @property
    def cycle(self) -> list[int]:
        """All nodes in the order of a round trip: neighbours follow each other where the links allow it."""
        return self._shape.cycle()

    @property
    def walk(self) -> list[int]:
        """All nodes in an order in which an aligned group of 2, 4, 8, ... in a row lies close together: a tile."""
        return self._shape.walk()

    def without(self, links: Iterable[Edge]) -> "Topology":
        """The same topology with some links out; ways avoid them, in the same order of preference.

        Raises UserError for what is no link, and where some node could not reach another any more.
        """
        head, _, out = self.name.partition("~")
        gone = {*links, *(read_links(out) if out else ())}
        return Topology(name=f"{head}~{write_links(gone)}" if gone else head, num_nodes=self.num_nodes)

    def has_link(self, a: int, b: int) -> bool:
        """Say whether node a can send to node b directly; False for a node that does not exist."""
        inside = 0 <= a < self.num_nodes and 0 <= b < self.num_nodes
        return inside and a != b and self._shape.has_link(a, b)

    def neighbours(self, a: int) -> list[int]:
        """Nodes to which node a has a link."""
        return list(self._shape.neighbours(a, 0))

    def route(self, a: int, b: int, *, tree: int = 0) -> tuple[Edge, ...]:
        """Give the links of a shortest way from a to b; empty where a is b. `tree` chooses among shortest ways."""
        path = self._path(a, b, tree)
        return tuple(pairwise(path))

    def hops(self, a: int, b: int) -> int:
        """Count the links of the shortest way from a to b."""
        return len(self._path(a, b)) - 1

    def distances(self, root: int) -> list[int]:
        """[N] links on the shortest way from root to each node; quicker than N times `hops`."""
        if self.is_switch:
            return [int(n != root) for n in range(self.num_nodes)]
        parents = breadth_first(self.num_nodes, root, self.neighbours)
        out = [-1] * self.num_nodes
        out[root] = 0
        for node in range(self.num_nodes):
            way = [node]
            while out[way[-1]] < 0:
                way.append(parents[way[-1]])
            for step, at in enumerate(reversed(way)):
                out[at] = out[way[-1]] + step
        return out

    def multicast(self, root: int, dsts: Collection[int], *, tree: int = 0) -> tuple[Edge, ...]:
        """Give the links of a tree from root to all of dsts, parents first, near nodes before far ones.

        Nodes on the way receive too, whether they are in dsts or not. The root may be in dsts and needs no link.
        """
        paths = sorted((self._path(root, dst, tree) for dst in set(dsts)), key=lambda path: self._rank(root, path))
        edges = (edge for path in paths for edge in pairwise(path))
        return tuple(dict.fromkeys(edges))

    def nearest(self, node: int, candidates: Collection[int]) -> int:
        """Choose the candidate with the fewest hops from node; ties go to the lowest (candidate - node) mod N."""
        if not candidates:
            raise UserError(f"got no candidates for the nearest node to {node}: expected at least one")
        return min(candidates, key=lambda candidate: self._rank(node, self._path(node, candidate)))

    @property
    def _shape(self) -> Shape:
        return shape_of(self.name, self.num_nodes)

    def _rank(self, root: int, path: list[int]) -> tuple[int, int]:
        return len(path), (path[-1] - root) % self.num_nodes

    def _path(self, a: int, b: int, tree: int = 0) -> list[int]:
        for node in (a, b):
            if not 0 <= node < self.num_nodes:
                raise UserError(f"got node {node}: expected a node from 0 to {self.num_nodes - 1}")
        return [a] if a == b else self._shape.path(a, b, min(tree, self._shape.num_trees - 1))
