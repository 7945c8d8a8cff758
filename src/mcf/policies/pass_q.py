"""`pass-q`: KV stays with its owner, queries travel. Every node attends everybody's queries to its own column of KV."""

from mcf.policies.common import Sight, Trees, start
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, head_tail


def plan(request: PlanRequest) -> Schedule:
    """Write the pass-q schedule: in every chunk queries go out, partial states come back, no KV ever moves."""
    b = start("pass-q", request, head_tail)
    sight, trees = Sight(b), Trees(request.cluster.topology)
    for chunk in range(b.num_chunks):
        _chunk(b, chunk, sight, trees)
    b.decode()
    return b.build()


def _chunk(b: Builder, chunk: int, sight: Sight, trees: Trees) -> None:
    """Queries leave first; own work hides their way, and near queries are passed on and answered before far ones."""
    num_nodes = b.meta.num_nodes
    for node in range(num_nodes):
        b.produce(node, chunk)
        holders = [n for n in range(num_nodes) if b.tokens_in(*_column(sight, node, n, chunk))]
        b.send_query(node, holders, chunk, route=trees.route(node, holders, chunk))
    states: dict[int, list[int | None]] = {q: [] for q in range(num_nodes)}
    for node in range(num_nodes):
        for q in (node, *trees.arrivals[node]):
            chunks, makers = _column(sight, q, node, chunk)
            state = b.attend(node, chunk, q=q, chunks=chunks, makers=makers)
            back = trees.back(node, q, chunk)
            states[q].append(state if q == node else b.send_state(node, [q], chunk, of=state, route=back))
    for q in range(num_nodes):
        b.merge(q, chunk, states[q])


def _column(sight: Sight, q: int, node: int, chunk: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """What the queries of node q may see of a node's own blocks: chunk range and maker range."""
    return sight.chunks(q, node, chunk), (node, node + 1)
