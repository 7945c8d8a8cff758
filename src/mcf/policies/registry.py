"""Policies by their names on the command line; budgets are judged here, by arithmetic on the finished plan."""

from collections.abc import Callable
from dataclasses import replace

from mcf.cluster import plugins
from mcf.errors import InfeasibleError, UnknownNameError, UserError
from mcf.policies import foreign, full, gather, mars, mars_paper, one_shot, pass_q, pd, ring, ulysses, zigzag
from mcf.policies.request import PlanRequest
from mcf.schedule import Schedule
from mcf.schedule.memory import peak_bytes
from mcf.units import format_bytes

Policy = Callable[[PlanRequest], Schedule]

_POLICIES: dict[str, Policy] = {
    "ring": ring.plan,
    "zigzag": zigzag.plan,
    "gather": gather.plan,
    "one-shot": one_shot.plan,
    "full": full.plan,
    "pass-q": pass_q.plan,
    "ulysses": ulysses.plan,
    "pd": pd.plan,
    "mars-paper": mars_paper.plan,
    "mars": mars.plan,
}
NAMES = tuple(_POLICIES)
BY_BYTES = frozenset(NAMES) - {"mars"}  # policies of ours whose plans do not depend on speeds


def plan(name: str, request: PlanRequest) -> Schedule:
    """Plan a request with the policy of that name: the same request gives the same bytes.

    Raises UnknownNameError for an unknown policy, and InfeasibleError with `missing_bytes` when a node's budget or the
    propagation buffer cannot hold the plan. A policy of another package is judged first (`policies.foreign`).
    """
    policy = _policy(name)
    if request.is_limited and name == "mars-paper":
        _check_budgets(name, request, _thriftiest(name, request))
    sched = policy(request)
    if request.is_limited:
        _check_budgets(name, request, sched)
    return sched


def least_budget(name: str, request: PlanRequest) -> int:
    """The smallest equal KV budget, in bytes per node, with which `plan` accepts the request."""
    return int(peak_bytes(_thriftiest(name, request)).max())


def check_name(name: str) -> None:
    """Raise UnknownNameError, with the nearest name, unless `name` is a policy's; PlugInError for a broken one.

    A plug-in with the name of a policy of ours is refused too.
    """
    if name in _POLICIES:
        plugins.refuse_known(foreign.GROUP, "policy", name)
    _policy(name)


def _policy(name: str) -> Policy:
    found = _POLICIES.get(name) or foreign.find(name)
    if found is None:
        raise UnknownNameError("policy", name, (*NAMES, *foreign.names()))
    return found


def _thriftiest(name: str, request: PlanRequest) -> Schedule:
    """The policy's plan that needs the least memory: without replicas, where the policy may choose."""
    if name == "mars":
        return _policy(name)(request.with_budget(1))  # nothing fits: each node holds its own, and queries travel
    return _policy(name)(replace(request.unlimited(), alpha=0))


def _check_budgets(name: str, request: PlanRequest, sched: Schedule) -> None:
    peaks = peak_bytes(sched).tolist()
    over = [
        (peak - budget, node, budget)
        for node, (peak, budget) in enumerate(zip(peaks, request.cluster.kv_budgets, strict=True))
        if budget is not None and peak > budget
    ]
    if over:
        missing, node, budget = max(over, key=lambda entry: (entry[0], -entry[1]))
        raise InfeasibleError(
            f"got a KV budget of {format_bytes(budget)} on node {node}: policy {name} needs {format_bytes(missing)} "
            f"({missing} bytes) more; expected at least {max(peaks)} bytes ({format_bytes(max(peaks))}) per node"
            f"{_advice(name, request, max(peaks))}",
            missing_bytes=missing,
        )


def _advice(name: str, request: PlanRequest, peak: int) -> str:
    """What to do instead: a policy that needs less, where there is one, else more nodes."""
    more = "; give more, use more nodes or a shorter prompt"
    if name not in ("full", "pd"):
        return more
    try:
        least = least_budget("mars-paper", request)
    except UserError:  # it cannot run here for other reasons
        return more
    return f"; policy mars-paper makes do with {least} bytes ({format_bytes(least)})" if least < peak else more
