"""A schedule's ways on a mesh of nodes: which route of the tables carries each send, and each credit back."""

from dataclasses import dataclass, field

from mcf.errors import ScheduleError
from mcf.rtl.entry import Entry, Port
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import SEND


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """Route numbers: of each send row, of plain packets between two nodes (also from a node to itself)."""

    mesh: Mesh
    tables: Tables
    of_send: dict[int, int] = field(default_factory=dict)
    of_pair: dict[tuple[int, int], int] = field(default_factory=dict)


def embed(sched: Schedule, mesh: Mesh) -> Embedding:
    """Put a schedule's links on a mesh.

    A schedule for this very mesh keeps its routes and trees; links of any other topology become ways over the mesh, x
    before y, and a multicast the tree of those. Raises ScheduleError for another number of nodes, for more routes than
    a router holds, and for routes that could wait for each other in a circle.
    """
    if sched.meta.num_nodes != mesh.num_nodes:
        raise ScheduleError(
            f"got a schedule of {sched.meta.num_nodes} nodes for a {mesh.width}x{mesh.height} mesh: "
            f"expected {mesh.num_nodes}; give another --mesh, or plan for as many nodes"
        )
    out = Embedding(mesh=mesh, tables=Tables(mesh=mesh))
    for row in (sched.steps["kind"] == SEND).nonzero()[0].tolist():
        _embed_send(out, sched, row)
    out.tables.check()
    return out


def _embed_send(out: Embedding, sched: Schedule, row: int) -> None:
    step, receivers = sched.step(row), sched.receivers(row)
    for node in receivers:
        _pair(out, node, step.node)
        _pair(out, step.node, node)
    if len(receivers) == 1 and (step.route < 0 or sched.meta.topology != out.mesh.topology.name):
        out.of_send[row] = _pair(out, step.node, receivers[0])
        return
    edges = sched.routes[step.route]
    if sched.meta.topology != out.mesh.topology.name:
        edges = out.mesh.topology.multicast(step.node, tuple(receivers))
    out.of_send[row] = out.tables.add(spread(out.mesh, step.node, edges, receivers))


def _pair(out: Embedding, a: int, b: int) -> int:
    """The route of plain packets from a to b."""
    if (a, b) not in out.of_pair:
        out.of_pair[a, b] = out.tables.add(spread(out.mesh, a, out.mesh.topology.route(a, b), [b]))
    return out.of_pair[a, b]


def own_route(out: Embedding, node: int) -> int:
    """The route from a node's packetizer to the node itself."""
    if (node, node) not in out.of_pair:
        entry = Entry(in_port=Port.LOCAL, outs=frozenset({Port.LOCAL}))
        out.of_pair[node, node] = out.tables.add({node: entry})
    return out.of_pair[node, node]
