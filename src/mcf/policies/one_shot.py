"""`one-shot`: the whole prompt is one chunk, layer by layer. New KV goes to all nodes once; there is no history."""

from dataclasses import replace

from mcf.policies.gather import write
from mcf.policies.request import PlanRequest
from mcf.schedule import Schedule


def plan(request: PlanRequest) -> Schedule:
    """Write the one-shot schedule, whatever chunk size was asked for: the least traffic without replicas.

    Its streams cannot be cut: raises InfeasibleError where a node's share of one layer does not fit the propagation
    buffer, and UserError for a single stream slot where streams are forwarded.
    """
    return write("one-shot", replace(request, chunk_tokens=request.prompt_tokens))
