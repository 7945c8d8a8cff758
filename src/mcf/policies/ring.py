"""`ring`: the baseline. Contiguous pieces; every block makes N - 1 hops around the ring in every chunk, used or not.

A node takes its step of the round with every block, also with a new one that none of its queries may see: it is masked,
but waited for, as ring implementations do. Left out, its last use would be its forward, before the attend: the next
step's receive would wait for that, and the double buffer would be a single one.
"""

from mcf.policies.common import check_slots, start, windows
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, contiguous
from mcf.schedule.pieces import Cutter


def plan(request: PlanRequest) -> Schedule:
    """Write the ring schedule: node n sends to n + 1, forwards what it receives, attends them all.

    Raises UserError for a single stream slot where blocks are forwarded.
    """
    return go_round("ring", request, contiguous)


def go_round(policy: str, request: PlanRequest, cutter: Cutter) -> Schedule:
    """Write the ring's dataflow on any pieces."""
    check_slots(policy, request, forwards=request.num_nodes > 2)
    b = start(policy, request, cutter)
    cycle = request.cluster.topology.cycle
    for chunk in range(b.num_chunks):
        for place in range(request.num_nodes):
            _chunk(b, cycle, place, chunk)
    b.decode()
    return b.build()


def _chunk(b: Builder, cycle: list[int], place: int, chunk: int) -> None:
    """Write the rows of the node at a place of the round; what the topology says is round, `cycle`."""
    num_nodes, node = len(cycle), cycle[place]
    b.produce(node, chunk)
    states = []
    for step in range(num_nodes):
        maker = cycle[(place - step) % num_nodes]
        if step < num_nodes - 1:
            _pass_on(b, (node, cycle[(place + 1) % num_nodes]), chunk, maker)
        states.append(b.attend(node, chunk, chunks=(0, chunk + 1), makers=(maker, maker + 1)))
    b.merge(node, chunk, states)


def _pass_on(b: Builder, hop: tuple[int, int], chunk: int, maker: int) -> None:
    """Send a maker's history and its new block on to the next node: one stream each where the buffer allows."""
    node, successor = hop
    for chunks in ((0, chunk), (chunk, chunk + 1)):
        for part in windows(b, chunks, maker):
            b.send_kv(node, [successor], chunk, chunks=part, makers=(maker, maker + 1))
