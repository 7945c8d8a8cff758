"""The ways of packets as trees of routers: of a payload to a group of receivers, of a posted receive to its sender."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mcf.cluster import SWITCH, Topology
from mcf.schedule.deadlock import lone_copies
from mcf.sim.network import Link
from mcf.sim.program import Program


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tree:
    """Where packets go: `outs[router]` are the next ones, the router itself among them where it is a receiver."""

    root: int
    outs: Mapping[int, tuple[int, ...]]


class Ways:
    """Groups of receives that get one packet together, and the trees of all packets.

    `groups` of each send: all its receives, or where they may wait for each other each alone; `group` the same of each
    receive. `links` of each receive: from the sender to it.
    """

    def __init__(self, program: Program, topology: Topology, recvs: Sequence[int], refs: Sequence[int]) -> None:
        self.program, self.topology, self.refs = program, topology, refs
        self.groups: dict[int, list[list[int]]] = {}
        self.group: dict[int, list[int]] = {}
        self.links: dict[int, list[Link]] = {}
        self._trees: dict[int, Tree] = {}
        self._backs: dict[Link, Tree] = {}
        self._set_groups(recvs)

    def _set_groups(self, recvs: Sequence[int]) -> None:
        sched, alone = self.program.sched, lone_copies(self.program.sched)
        into: dict[int, dict[int, Link]] = {}
        for recv in recvs:
            ref = self.refs[recv]
            groups = self.groups.setdefault(ref, [])
            if not groups or ref in alone:
                groups.append([])
            groups[-1].append(recv)
            self.group[recv] = groups[-1]
            self.links[recv] = self._links(recv, ref, sched.routes, into)

    def _links(
        self, recv: int, ref: int, routes: Sequence[tuple[Link, ...]], into: dict[int, dict[int, Link]]
    ) -> list[Link]:
        root, dst, route = self.program.node[ref], self.program.dst[ref], self.program.route[ref]
        if route < 0:
            return [(root, dst)]
        if dst >= 0:
            return list(routes[route])
        edges = into.setdefault(route, {edge[1]: edge for edge in routes[route]})
        out = [edges[self.program.node[recv]]]
        while out[-1][0] != root:
            out.append(edges[out[-1][0]])
        return out[::-1]

    def tree(self, group: Sequence[int]) -> Tree:
        """Of a payload to a group of receives."""
        found = self._trees.get(group[0])
        if found is None:
            root = self.program.node[self.refs[group[0]]]
            found = self._trees[group[0]] = self._joined(root, [self.links[recv] for recv in group])
        return found

    def back(self, recv: int) -> Tree:
        """From a receiver to its sender, by the topology's own way."""
        a, b = self.program.node[recv], self.program.node[self.refs[recv]]
        if (a, b) not in self._backs:
            way = ((a, b),) if self.topology.is_switch else self.topology.route(a, b)
            self._backs[a, b] = self._joined(a, [way])
        return self._backs[a, b]

    def all_trees(self) -> list[Tree]:
        """Every tree that packets take."""
        every = [self.tree(group) for groups in self.groups.values() for group in groups]
        return every + [self.back(recv) for recv in self.links]

    def _joined(self, root: int, ways: Sequence[Sequence[Link]]) -> Tree:
        """Ways to receivers as one tree; on a switch each hop goes through it."""
        outs: dict[int, dict[int, None]] = {}
        for way in ways:
            for a, b in way:
                for at, to in ((a, SWITCH), (SWITCH, b)) if self.topology.is_switch else ((a, b),):
                    outs.setdefault(at, {})[to] = None
            outs.setdefault(way[-1][1], {})[way[-1][1]] = None
        return Tree(root=root, outs={at: tuple(to) for at, to in outs.items()})


def ports_of(topology: Topology, num_nodes: int, router: int) -> list[int | None]:
    """Whom a router's inputs are from, itself last. On a mesh north, east, south and west, as in hardware; or None."""
    if topology.is_switch:
        return [*range(num_nodes)] if router == SWITCH else [SWITCH, router]
    near = [other for other in range(num_nodes) if other != router and topology.has_link(other, router)]
    if not topology.name.startswith("mesh"):
        return [*near, router]
    by_side = {_side(other - router): other for other in near}
    return [*(by_side.get(side) for side in range(4)), router]


def _side(distance: int) -> int:
    """Of a neighbour on a mesh: above, right, below, left."""
    if abs(distance) == 1:
        return 1 if distance == 1 else 3
    return 0 if distance < 0 else 2


def has_circle(trees: Iterable[Tree]) -> bool:
    """Say whether links can wait for each other in a circle: then full buffers might stop everything."""
    after: dict[Link, set[Link]] = {}
    for tree in trees:
        for at, outs in tree.outs.items():
            for to in outs:
                if to != at:
                    after.setdefault((at, to), set()).update((to, b) for b in tree.outs.get(to, ()) if b != to)
    while done := [link for link, others in after.items() if not any(other in after for other in others)]:
        for link in done:
            del after[link]
    return bool(after)
