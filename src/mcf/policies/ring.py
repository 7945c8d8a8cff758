"""`ring`: the baseline. Contiguous pieces; every block makes N - 1 hops around the ring in every chunk, used or not."""

from mcf.policies.common import Sight, check_slots, start, windows
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, contiguous
from mcf.schedule.builder import Range
from mcf.schedule.pieces import Cutter


def plan(request: PlanRequest) -> Schedule:
    """Write the ring schedule: node n sends to n + 1, forwards what it receives, attends what its queries may see.

    Raises UserError for a single stream slot where blocks are forwarded.
    """
    return go_round("ring", request, contiguous)


def go_round(policy: str, request: PlanRequest, cutter: Cutter) -> Schedule:
    """Write the ring's dataflow on any pieces."""
    check_slots(policy, request, forwards=request.num_nodes > 2)
    b = start(policy, request, cutter)
    sight, cycle = Sight(b), request.cluster.topology.cycle
    for chunk in range(b.num_chunks):
        for place in range(request.num_nodes):
            _chunk(b, cycle, place, chunk, sight)
    b.decode()
    return b.build()


def _chunk(b: Builder, cycle: list[int], place: int, chunk: int, sight: Sight) -> None:
    """Write the rows of the node at a place of the round; what the topology says is round, `cycle`."""
    num_nodes, node = len(cycle), cycle[place]
    b.produce(node, chunk)
    states = []
    for step in range(num_nodes):
        maker = cycle[(place - step) % num_nodes]
        if step < num_nodes - 1:
            _pass_on(b, (node, cycle[(place + 1) % num_nodes]), chunk, maker)
        states.append(b.attend(node, chunk, chunks=_attended(b, node, chunk, maker, sight), makers=(maker, maker + 1)))
    b.merge(node, chunk, states)


def _attended(b: Builder, node: int, chunk: int, maker: int, sight: Sight) -> Range:
    """What is attended of a maker: a new block that no query sees goes with its history, masked, where there is some.

    Left out, its last use would be its forward, before the attend: the next step's receive would wait for that, and the
    double buffer would be a single one.
    """
    if b.tokens_in((0, chunk), (maker, maker + 1)):
        return 0, chunk + 1
    return sight.chunks(node, maker, chunk)


def _pass_on(b: Builder, hop: tuple[int, int], chunk: int, maker: int) -> None:
    """Send a maker's history and its new block on to the next node: one stream each where the buffer allows."""
    node, successor = hop
    for chunks in ((0, chunk), (chunk, chunk + 1)):
        for part in windows(b, chunks, maker):
            b.send_kv(node, [successor], chunk, chunks=part, makers=(maker, maker + 1))
