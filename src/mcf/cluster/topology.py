"""Topologies: which node has a link to which, and the routes over those links.

Nodes count from 0. A link is directed, `(a, b)`; a route is the tuple of its links, from the root outward. Links and
routes are computed, never stored: a switch of 1,024 nodes has a million links.
"""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from mcf.errors import UnknownNameError, UserError

Edge = tuple[int, int]


class _Shape(Protocol):
    """What tells one topology from another; nodes are in range and `a != b`."""

    def has_link(self, a: int, b: int, num_nodes: int) -> bool: ...

    def path(self, a: int, b: int, num_nodes: int) -> list[int]:
        """All nodes on the way from a to b, both included: a shortest way; the paths from one root form a tree."""


class _Switch:
    """Every ordered pair of nodes has a link of its own."""

    def has_link(self, a: int, b: int, num_nodes: int) -> bool:
        return a != b

    def path(self, a: int, b: int, num_nodes: int) -> list[int]:
        return [a, b]


class _Ring:
    """Node n has a link to n + 1 and one to n - 1, modulo the number of nodes."""

    def has_link(self, a: int, b: int, num_nodes: int) -> bool:
        return a != b and (b - a) % num_nodes in (1, num_nodes - 1)

    def path(self, a: int, b: int, num_nodes: int) -> list[int]:
        up = (b - a) % num_nodes
        step, hops = (1, up) if 2 * up <= num_nodes else (-1, num_nodes - up)  # opposite nodes: upwards
        return [(a + step * hop) % num_nodes for hop in range(hops + 1)]


_SHAPES: dict[str, _Shape] = {"ring": _Ring(), "switch": _Switch()}
NAMES = tuple(_SHAPES)


@dataclass(frozen=True, kw_only=True)
class Topology:
    """The links between `num_nodes` nodes, by name.

    Raises `UnknownNameError` for an unknown name and `UserError` for fewer than one node.

    >>> ring = Topology.parse("ring", 4)
    >>> ring.route(0, 2), ring.hops(0, 3), ring.has_link(0, 2)
    (((0, 1), (1, 2)), 1, False)
    """

    name: str
    num_nodes: int

    def __post_init__(self) -> None:
        """Check the name and the number of nodes."""
        if self.name not in _SHAPES:
            raise UnknownNameError("topology", self.name, _SHAPES)
        if isinstance(self.num_nodes, bool) or not isinstance(self.num_nodes, int) or self.num_nodes < 1:
            raise UserError(f"got {self.num_nodes!r} nodes: expected a whole number of at least 1")

    @classmethod
    def parse(cls, spec: str, num_nodes: int) -> "Topology":
        """Read a topology as it stands on a command line or in a schedule: `switch` or `ring`."""
        return cls(name=spec.strip(), num_nodes=num_nodes)

    @property
    def links(self) -> frozenset[Edge]:
        """All directed links; N * (N - 1) of them for a switch, so ask `has_link` where N is large."""
        nodes = range(self.num_nodes)
        return frozenset((a, b) for a in nodes for b in nodes if self.has_link(a, b))

    def has_link(self, a: int, b: int) -> bool:
        """Say whether node a can send to node b directly; False for a node that does not exist."""
        if not (0 <= a < self.num_nodes and 0 <= b < self.num_nodes):
            return False
        return _SHAPES[self.name].has_link(a, b, self.num_nodes)

    def route(self, a: int, b: int) -> tuple[Edge, ...]:
        """Give the links of a shortest way from a to b; empty where a is b."""
        path = self._path(a, b)
        return tuple(pairwise(path))

    def hops(self, a: int, b: int) -> int:
        """Count the links of the shortest way from a to b."""
        return len(self._path(a, b)) - 1

    def multicast(self, root: int, dsts: Collection[int]) -> tuple[Edge, ...]:
        """Give the links of a tree from root to all of dsts, parents first, near nodes before far ones.

        Nodes on the way receive too, whether they are in dsts or not. The root may be in dsts and needs no link.
        """
        paths = sorted((self._path(root, dst) for dst in set(dsts)), key=lambda path: self._rank(root, path))
        edges = (edge for path in paths for edge in pairwise(path))
        return tuple(dict.fromkeys(edges))

    def nearest(self, node: int, candidates: Collection[int]) -> int:
        """Choose the candidate with the fewest hops from node; ties go to the lowest (candidate - node) mod N."""
        if not candidates:
            raise UserError(f"got no candidates for the nearest node to {node}: expected at least one")
        return min(candidates, key=lambda candidate: self._rank(node, self._path(node, candidate)))

    def _rank(self, root: int, path: list[int]) -> tuple[int, int]:
        return len(path), (path[-1] - root) % self.num_nodes

    def _path(self, a: int, b: int) -> list[int]:
        for node in (a, b):
            if not 0 <= node < self.num_nodes:
                raise UserError(f"got node {node}: expected a node from 0 to {self.num_nodes - 1}")
        return [a] if a == b else _SHAPES[self.name].path(a, b, self.num_nodes)
