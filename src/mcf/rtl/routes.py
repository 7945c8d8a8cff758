"""Route tables: the ways of a schedule over a mesh as entries of the nodes' routers, and why they cannot dead-lock.

A route is one entry in each node that it touches. Trees are given by their links from the root outward, as schedules
and `mcf.cluster.Topology` have them: its x-first and y-first ways and trees are `topology.route(a, b, tree=0 or 1)`
and `topology.multicast(root, dsts, tree=0 or 1)`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from mcf.cluster import Topology
from mcf.cluster.topology import Edge
from mcf.errors import ScheduleError
from mcf.rtl.entry import NUM_ROUTES, Entry, Port

Entries = Mapping[int, Entry]  # node -> what it does with the route's packets
Channel = tuple[int, Port]  # the queue of a node's output
MAX_SIDE = 32  # coordinates of 5 bits: 1,024 nodes, what the header's src can name


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """`width` x `height` nodes, node n at (n % width, n // width); south is towards higher numbers."""

    width: int
    height: int

    def __post_init__(self) -> None:
        """The header can name 1,024 nodes."""
        sides = self.width, self.height
        if min(sides) < 1 or max(sides) > MAX_SIDE:
            over = f", {max(sides) - MAX_SIDE} fewer" if max(sides) > MAX_SIDE else ""
            raise ScheduleError(
                f"got a mesh of {self.width}x{self.height}: expected 1 to {MAX_SIDE} nodes on each side{over}, "
                f"which is what the packet header can name ({MAX_SIDE**2:,} nodes); choose another mesh"
            )

    @property
    def num_nodes(self) -> int:
        """All nodes."""
        return self.width * self.height

    @property
    def topology(self) -> Topology:
        """Ways and trees over this mesh."""
        return Topology(name=f"mesh:{self.width}x{self.height}", num_nodes=self.num_nodes)

    def neighbour(self, node: int, port: Port) -> int | None:
        """The node behind a port; None at the edge of the mesh, and for the node itself."""
        x, y = node % self.width, node // self.width
        x += {Port.EAST: 1, Port.WEST: -1}.get(port, 0)
        y += {Port.SOUTH: 1, Port.NORTH: -1}.get(port, 0)
        inside = 0 <= x < self.width and 0 <= y < self.height and port != Port.LOCAL
        return y * self.width + x if inside else None

    def port(self, edge: Edge) -> Port:
        """The port of the first node that leads to the second. Raises ScheduleError where there is no such link."""
        for port in Port:
            if 0 <= edge[0] < self.num_nodes and self.neighbour(edge[0], port) == edge[1]:
                return port
        raise ScheduleError(
            f"got a hop from node {edge[0]} to node {edge[1]}: expected neighbours of the {self.width}x{self.height} "
            "mesh; plan for this mesh"
        )


def spread(mesh: Mesh, root: int, edges: Sequence[Edge], members: Collection[int]) -> dict[int, Entry]:
    """The entries of a route from `root` along a tree of links to `members`; nodes on the way only pass it on.

    Raises ScheduleError for hops that are no tree from the root, and for members that it does not reach.
    """
    ports = _tree(mesh, root, edges)
    missing = sorted(set(members) - set(ports))
    if missing:
        raise ScheduleError(
            f"got a route from node {root} that does not reach node {missing[0]}: expected hops to it; "
            "plan for this mesh"
        )
    return {
        node: Entry(in_port=in_port, outs=frozenset(outs) | ({Port.LOCAL} if node in members else set()))
        for node, (in_port, outs) in ports.items()
    }


def gather(mesh: Mesh, root: int, edges: Sequence[Edge]) -> dict[int, Entry]:
    """The entries of a reduction towards `root` along the same kind of tree, walked from its leaves.

    What children send is delivered to each node; what the node injects goes to its parent, at the root to itself.
    """
    return {
        node: Entry(in_port=Port.LOCAL, outs=frozenset({parent}), children=frozenset(children), parent=parent)
        for node, (parent, children) in _tree(mesh, root, edges).items()
    }


def _tree(mesh: Mesh, root: int, edges: Sequence[Edge]) -> dict[int, tuple[Port, list[Port]]]:
    """For each node the port towards the root, LOCAL at the root itself, and the ports away from it."""
    out: dict[int, tuple[Port, list[Port]]] = {root: (Port.LOCAL, [])}
    for a, b in edges:
        port = mesh.port((a, b))
        if a not in out or b in out:
            raise ScheduleError(
                f"got the hop {a} > {b} in a route from node {root}: expected a tree, parents first; plan for this mesh"
            )
        out[a][1].append(port)
        out[b] = (port.opposite, [])
    return out


@dataclass(kw_only=True)
class Tables:
    """The tables of all nodes while routes are added. Numbers start at 1: 0 is the direct link in a schedule."""

    mesh: Mesh
    routes: list[Entries] = field(default_factory=list)
    numbers: dict[frozenset[tuple[int, int]], int] = field(default_factory=dict)

    def add(self, entries: Entries) -> int:
        """Take a route in and give its number; a route that is there already keeps its number."""
        key = frozenset((node, entry.pack()) for node, entry in entries.items())
        if key not in self.numbers:
            self.routes.append(entries)
            self.numbers[key] = len(self.routes)
        return self.numbers[key]

    def words(self, node: int) -> dict[int, int]:
        """Route -> the 16 bits to write at a node."""
        return {number: entries[node].pack() for number, entries in enumerate(self.routes, start=1) if node in entries}

    def check(self) -> None:
        """Refuse more routes than a router holds, and those whose packets could wait for each other in a circle."""
        most = NUM_ROUTES - 1
        if len(self.routes) > most:
            raise ScheduleError(
                f"got {len(self.routes)} routes: a router's table holds {most}, {len(self.routes) - most} fewer; "
                "use fewer nodes or a policy with fewer different trees"
            )
        check_acyclic(self.mesh, self.routes)


def waits(mesh: Mesh, routes: Iterable[Entries]) -> dict[Channel, set[Channel]]:
    """For each output queue those that its packets need next. A node's own queue needs none: nodes take what comes."""
    out: dict[Channel, set[Channel]] = {}
    for entries in routes:
        for node, entry in entries.items():
            for port in entry.outs - {Port.LOCAL}:
                beyond = mesh.neighbour(node, port)
                after = None if beyond is None else entries.get(beyond)
                needs = out.setdefault((node, port), set())
                if beyond is not None and after is not None and after.in_port == port.opposite:
                    needs |= {(beyond, further) for further in after.outs - {Port.LOCAL}}
    return out


def check_acyclic(mesh: Mesh, routes: Iterable[Entries]) -> None:
    """Refuse routes whose output queues can wait for each other in a circle: such a set can dead-lock.

    Cut-through without virtual channels is free of dead-lock if this graph has no cycle (Dally and Seitz, 1987), a
    multicast too, since it takes all its outputs at once and holds none while it waits.
    """
    try:
        TopologicalSorter(waits(mesh, routes)).prepare()
    except CycleError as error:
        hops = [f"{node} > {mesh.neighbour(node, port)}" for node, port in reversed(error.args[1])]
        raise ScheduleError(
            f"got routes that can wait for each other in a circle ({', '.join(hops)}): expected none; "
            "let all trees go the same dimension first"
        ) from None
