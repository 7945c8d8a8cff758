"""The shapes of topologies: which links there are, and one or two trees of shortest ways from every node.

A *tree number* picks among shortest ways: 0 goes along x before y, 1 along y before x. Shapes without two dimensions
have the one tree. The ways of one tree number from one root form a tree: dimension-ordered on a grid, breadth first
with a fixed order of neighbours elsewhere.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mcf.errors import UserError

Edge = tuple[int, int]


class Shape(Protocol):
    """What tells one topology from another; nodes are in range and `a != b`."""

    num_trees: int

    def has_link(self, a: int, b: int) -> bool:
        """Say whether there is a link from a to b."""

    def neighbours(self, a: int, tree: int) -> Sequence[int]:
        """Nodes to which node a has a link, in the order in which a tree prefers them."""

    def path(self, a: int, b: int, tree: int) -> list[int]:
        """All nodes on the way from a to b, both included: a shortest way; the paths from one root form a tree."""

    def cycle(self) -> list[int]:
        """All nodes in the order in which a payload goes round: neighbours follow each other where that can be."""

    def walk(self) -> list[int]:
        """All nodes in an order in which those of every aligned group of 2, 4, 8, ... in a row are near each other."""


class Switch:
    """Every ordered pair of nodes has a link of its own."""

    num_trees = 1

    def __init__(self, num_nodes: int) -> None:
        self.num_nodes = num_nodes

    def has_link(self, a: int, b: int) -> bool:
        """Say whether there is a link from a to b."""
        return a != b

    def neighbours(self, a: int, tree: int) -> Sequence[int]:
        """Nodes to which a has a link, in the order of a tree."""
        return [(a + step) % self.num_nodes for step in range(1, self.num_nodes)]

    def path(self, a: int, b: int, tree: int) -> list[int]:
        """A shortest way from a to b, both included."""
        return [a, b]

    def cycle(self) -> list[int]:
        """All nodes in the order of a round trip."""
        return list(range(self.num_nodes))

    def walk(self) -> list[int]:
        """All nodes in order: all are equally near."""
        return list(range(self.num_nodes))


class Ring:
    """Node n has a link to n + 1 and, unless it is one-way, one to n - 1, modulo the number of nodes."""

    num_trees = 1

    def __init__(self, num_nodes: int, *, one_way: bool = False) -> None:
        self.num_nodes, self.one_way = num_nodes, one_way

    def has_link(self, a: int, b: int) -> bool:
        """Say whether there is a link from a to b."""
        return b in self.neighbours(a, 0)

    def neighbours(self, a: int, tree: int) -> Sequence[int]:
        """Nodes to which a has a link, in the order of a tree."""
        steps = (1,) if self.one_way else (1, -1)
        return [n for n in dict.fromkeys((a + step) % self.num_nodes for step in steps) if n != a]

    def path(self, a: int, b: int, tree: int) -> list[int]:
        """A shortest way from a to b, both included."""
        up = (b - a) % self.num_nodes  # opposite nodes: upwards
        step, hops = (1, up) if self.one_way or 2 * up <= self.num_nodes else (-1, self.num_nodes - up)
        return [(a + step * hop) % self.num_nodes for hop in range(hops + 1)]

    def cycle(self) -> list[int]:
        """All nodes in the order of a round trip."""
        return list(range(self.num_nodes))

    def walk(self) -> list[int]:
        """All nodes in order: those in a row are near each other."""
        return list(range(self.num_nodes))


class Grid:
    """`width` x `height` nodes, node n at (n % width, n // width); a torus closes rows and columns."""

    num_trees = 2

    def __init__(self, width: int, height: int, *, wraps: bool) -> None:
        self.width, self.height, self.wraps = width, height, wraps

    def has_link(self, a: int, b: int) -> bool:
        """Say whether there is a link from a to b."""
        return b in self.neighbours(a, 0)

    def neighbours(self, a: int, tree: int) -> Sequence[int]:
        """Along the dimension that the tree takes first, upwards before downwards."""
        x, y = a % self.width, a // self.width
        along_x = [y * self.width + other for other in self._beside(x, self.width)]
        along_y = [other * self.width + x for other in self._beside(y, self.height)]
        return along_x + along_y if tree == 0 else along_y + along_x

    def path(self, a: int, b: int, tree: int) -> list[int]:
        """A shortest way from a to b, both included."""
        (ax, ay), (bx, by) = ((n % self.width, n // self.width) for n in (a, b))
        xs, ys = self._walk(ax, bx, self.width), self._walk(ay, by, self.height)
        if tree == 0:
            return [ay * self.width + x for x in xs] + [y * self.width + bx for y in ys[1:]]
        return [y * self.width + ax for y in ys] + [by * self.width + x for x in xs[1:]]

    def cycle(self) -> list[int]:
        """Down the first column and back through the others in turns: a closed walk where the height is even."""
        width, height = self.width, self.height
        if width == 1 or height == 1 or (height % 2 and width % 2):
            rows = [range(y * width, (y + 1) * width) for y in range(height)]
            return [n for y, row in enumerate(rows) for n in (row if y % 2 == 0 else reversed(row))]
        if height % 2:
            turned = Grid(height, width, wraps=self.wraps).cycle()
            return [n % height * width + n // height for n in turned]
        out = [0]
        for y in range(height):
            row = range(y * width + 1, (y + 1) * width)
            out += row if y % 2 == 0 else reversed(row)
        return out + [y * width for y in range(height - 1, 0, -1)]

    def walk(self) -> list[int]:
        """Tile by tile: a group of 2, 4, 8, ... nodes in a row is a rectangle of the grid, as square as can be.

        Inside the largest tiles, whose sides are powers of two, this is a Z-order curve.

        >>> Grid(4, 4, wraps=False).walk()
        [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]
        """
        wide, high = self.width & -self.width, self.height & -self.height  # the largest powers of two that divide them
        inside = _zigzag(wide, high)
        return [
            (top + y) * self.width + left + x
            for top in range(0, self.height, high)
            for left in range(0, self.width, wide)
            for x, y in inside
        ]

    def _beside(self, at: int, size: int) -> list[int]:
        if self.wraps:
            return [n for n in dict.fromkeys(((at + 1) % size, (at - 1) % size)) if n != at]
        return [n for n in (at + 1, at - 1) if 0 <= n < size]

    def _walk(self, a: int, b: int, size: int) -> list[int]:
        """Positions from a to b in one dimension; round the end where that is shorter, upwards where it is equal."""
        if not self.wraps:
            return list(range(a, b + 1)) if a <= b else list(range(a, b - 1, -1))
        up = (b - a) % size
        step, hops = (1, up) if 2 * up <= size else (-1, size - up)
        return [(a + step * hop) % size for hop in range(hops + 1)]


def _zigzag(width: int, height: int) -> list[tuple[int, int]]:
    """(x, y) of a rectangle whose sides are powers of two: its halves one after the other, cut across the longer."""
    if width == height == 1:
        return [(0, 0)]
    if width > height:
        half = _zigzag(width // 2, height)
        return half + [(x + width // 2, y) for x, y in half]
    half = _zigzag(width, height // 2)
    return half + [(x, y + height // 2) for x, y in half]


Neighbours = Callable[[int, int], Sequence[int]]


class Graph:
    """Any directed graph; ways are breadth first. Neighbours come in a given order, else upwards from the node.

    Raises UserError for a link to itself, an unknown node, and a graph in which some node cannot reach another.
    """

    num_trees = 1

    def __init__(
        self,
        num_nodes: int,
        links: Iterable[Edge],
        *,
        order: Neighbours | None = None,
        num_trees: int = 1,
        walk: list[int] | None = None,
    ) -> None:
        self.num_nodes, self.num_trees, self._given_walk = num_nodes, num_trees, walk
        self._order = order or (lambda a, tree: sorted(self._links[a], key=lambda b: (b - a) % num_nodes))
        self._links: list[set[int]] = [set() for _ in range(num_nodes)]
        for a, b in links:
            _check_edge(a, b, num_nodes)
            self._links[a].add(b)
        self._parents: dict[tuple[int, int], list[int]] = {}
        self._check_connected()

    def has_link(self, a: int, b: int) -> bool:
        """Say whether there is a link from a to b."""
        return b in self._links[a]

    def neighbours(self, a: int, tree: int) -> Sequence[int]:
        """Nodes to which a has a link, in the order of a tree."""
        return [b for b in self._order(a, tree) if b in self._links[a]]

    def path(self, a: int, b: int, tree: int) -> list[int]:
        """A shortest way from a to b, both included."""
        parents, out = self._tree(a, tree), [b]
        while out[-1] != a:
            out.append(parents[out[-1]])
        return out[::-1]

    def cycle(self) -> list[int]:
        """Depth first: on a tree each link is crossed twice, once each way."""
        out, stack = dict[int, None](), [0]
        while stack:
            node = stack.pop()
            if node not in out:
                out[node] = None
                stack += reversed(self.neighbours(node, 0))
        return list(out)

    def walk(self) -> list[int]:
        """As it was given, else depth first: a part of a tree stands in a row."""
        return self.cycle() if self._given_walk is None else self._given_walk

    def _tree(self, root: int, tree: int) -> list[int]:
        if (root, tree) not in self._parents:
            self._parents[root, tree] = breadth_first(self.num_nodes, root, lambda a: self.neighbours(a, tree))
        return self._parents[root, tree]

    def _check_connected(self) -> None:
        back: list[set[int]] = [set() for _ in range(self.num_nodes)]
        for a, ends in enumerate(self._links):
            for b in ends:
                back[b].add(a)
        for links, way in ((self._links, "node 0 to node {}"), (back, "node {} to node 0")):
            parents = breadth_first(self.num_nodes, 0, links.__getitem__)
            if -1 in parents:
                raise UserError(
                    f"got a graph without a way from {way.format(parents.index(-1))}: expected every node to reach "
                    "every other; add a link"
                )


def breadth_first(num_nodes: int, root: int, near: Callable[[int], Iterable[int]]) -> list[int]:
    """Parents in the tree of shortest ways from a root (itself its parent); -1 where there is no way."""
    parents = [-1] * num_nodes
    parents[root] = root
    queue = [root]
    for a in queue:
        for b in near(a):
            if parents[b] < 0:
                parents[b] = a
                queue.append(b)
    return parents


def tree_links(num_nodes: int, arity: int) -> list[Edge]:
    """Both directions of the links of a complete tree: the children of n are arity * n + 1 and the next ones."""
    down = [((child - 1) // arity, child) for child in range(1, num_nodes)]
    return down + [(b, a) for a, b in down]


def check_tree(num_nodes: int, links: Iterable[Edge]) -> None:
    """Refuse what is no tree; raises UserError that names a link which closes a cycle."""
    team = list(range(num_nodes))

    def find(node: int) -> int:
        while team[node] != node:
            node = team[node]
        return node

    for a, b in dict.fromkeys((min(edge), max(edge)) for edge in links):
        _check_edge(a, b, num_nodes)
        if find(a) == find(b):
            raise UserError(
                f"got a tree in which link {a}-{b} closes a cycle: expected none; take it out, or say graph"
            )
        team[find(a)] = find(b)


def _check_edge(a: int, b: int, num_nodes: int) -> None:
    for node in (a, b):
        if not 0 <= node < num_nodes:
            raise UserError(f"got a link {a}>{b} on {num_nodes} nodes: expected nodes from 0 to {num_nodes - 1}")
    if a == b:
        raise UserError(f"got a link from node {a} to itself: expected two nodes")
