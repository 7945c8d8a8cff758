"""`full`: full replication (r = N). Every node keeps every block until the end of prefill; history is never fetched."""

from mcf.policies.common import Children, Trees, start
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, head_tail
from mcf.schedule.steps import KEEP


def plan(request: PlanRequest) -> Schedule:
    """Write the full schedule: one kept multicast per node and chunk, all copies dropped at the end."""
    b, trees = start("full", request, head_tail), Trees(request.cluster.topology)
    nodes = range(request.num_nodes)
    for chunk in range(b.num_chunks):
        children = trees.to(list(nodes), chunk)
        for node in nodes:
            _chunk(b, node, chunk, [node, *trees.arrivals[node]], children)
    for node in nodes:
        _converge(b, node)
    b.decode()
    return b.build()


def _chunk(b: Builder, node: int, chunk: int, makers: list[int], children: list[Children]) -> None:
    new = (chunk, chunk + 1)
    b.produce(node, chunk)
    for maker in makers:
        dsts = children[maker].get(node, [])
        b.send_kv(node, dsts, chunk, chunks=new, makers=(maker, maker + 1), hold=KEEP)
    states = [b.attend(node, chunk, chunks=(0, chunk), makers=(0, b.meta.num_nodes))]
    # One attend per arriving block: computing on the first hides the way of the others.
    states += [b.attend(node, chunk, chunks=new, makers=(maker, maker + 1)) for maker in makers]
    b.merge(node, chunk, states)


def _converge(b: Builder, node: int) -> None:
    """Eq. 29: after the last chunk only owners hold blocks."""
    chunks, others = (0, b.num_chunks), ((0, node), (node + 1, b.meta.num_nodes))
    for makers in others:
        b.drain(node, b.num_chunks, chunks=chunks, makers=makers)
    for makers in others:
        b.free(node, b.num_chunks, chunks=chunks, makers=makers)
