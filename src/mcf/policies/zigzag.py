"""`zigzag`: the ring's dataflow on head-tail pieces: the same traffic, equal causal work on every node."""

from mcf.policies.request import PlanRequest
from mcf.policies.ring import go_round
from mcf.schedule import Schedule, head_tail


def plan(request: PlanRequest) -> Schedule:
    """Write the zigzag schedule: node n computes pieces n and 2N-1-n of each chunk; blocks go around as in `ring`.

    Raises UserError for a single stream slot where blocks are forwarded.
    """
    return go_round("zigzag", request, head_tail)
