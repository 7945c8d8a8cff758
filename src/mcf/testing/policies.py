"""`check_policy`: a policy of your own is judged as ours are.

Raises CheckFailed that names the case, or LawError for a schedule that breaks a law.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from mcf.cluster import Cluster
from mcf.errors import InfeasibleError, ScheduleError, UserError
from mcf.model import ModelShape
from mcf.policies import PlanRequest
from mcf.ref import Outcome, run
from mcf.schedule import Report, Schedule, dump, from_bytes, parse, to_bytes, verify
from mcf.schedule.steps import DECODE, PREFILL
from mcf.testing.expect import expect
from mcf.testing.oracle import dense_attention, random_qkv

EXACT = 1e-12  # float64: only the grouping of sums differs
TINY = ModelShape(
    name="tiny", num_layers=2, num_q_heads=4, num_kv_heads=2, head_dim=4, hidden_size=16, intermediate_size=32,
    vocab_size=64, max_positions=4096,
)  # fmt: skip
Policy = Callable[[PlanRequest], Schedule]


def policy_requests(
    *, max_nodes: int = 4, prompts: Iterable[tuple[int, int]] = ((1, 4), (7, 3), (23, 8), (150, 131))
) -> Iterator[PlanRequest]:
    """A grid of small requests: (prompt, chunk) tokens of odd lengths, 1 to `max_nodes` nodes, switch and ring."""
    for num_nodes, (tokens, chunk), topology, slots in product(
        range(1, max_nodes + 1), prompts, ("switch", "ring"), (1, 2)
    ):
        yield PlanRequest(
            shape=TINY,
            cluster=Cluster.uniform(topology, num_nodes),
            prompt_tokens=tokens,
            chunk_tokens=chunk,
            max_new_tokens=tokens % 4,
            stream_slots=slots,
        )


def check_policy(policy: Policy, requests: Iterable[PlanRequest] | None = None, *, budgets: bool = True) -> int:
    """Judge a policy `PlanRequest -> Schedule` on a grid of requests; returns the number of schedules judged.

    Each plan must be legal, the same twice, equal dense attention to 1e-12 on the reference executor, move the bytes
    that the schedule's arithmetic says, and survive its text and its bytes. With `budgets`, each request is planned
    again with just the memory that it used, and with less: it must fit or be refused with the bytes that are missing.
    A policy that needs a double buffer may refuse requests with one stream slot, and one that needs partners a single
    node (UserError).
    """
    count = 0
    for request in policy_requests() if requests is None else requests:
        try:
            report = _check_plan(policy, request)
        except UserError as error:
            if (request.stream_slots > 1 and request.num_nodes > 1) or isinstance(error, ScheduleError):
                raise
            continue
        count += 1
        if budgets:
            count += _check_budgets(policy, request, max(report.peak_bytes))
    return count


def _case(request: PlanRequest) -> str:
    cluster = request.cluster
    budget = cluster.kv_budgets[0]
    return (
        f"{cluster.num_nodes} nodes, {cluster.topology.name}, {request.prompt_tokens} tokens in chunks of "
        f"{request.chunk_tokens}, {request.stream_slots} slots, budget {budget or 'none'}"
    )


def _check_plan(policy: Policy, request: PlanRequest) -> Report:
    case, sched = _case(request), policy(request)
    report = verify(sched)
    meta, expected = sched.meta, request.meta(sched.meta.policy)
    for name in ("num_nodes", "prompt_tokens", "num_layers", "max_new_tokens", "topology", "budgets"):
        got, want = getattr(meta, name), getattr(expected, name)
        expect(got == want, case, f"the schedule's {name} is {got}: the request says {want}")
    expect(to_bytes(policy(request)) == to_bytes(sched), case, "planning twice gives different bytes")
    check_schedule(sched, report, decode_tokens=min(2, request.max_new_tokens), case=case)
    return report


def check_schedule(sched: Schedule, report: Report, *, decode_tokens: int = 0, case: str = "") -> Outcome:
    """Run one legal schedule on the reference executor and compare everything with what is known beforehand."""
    tensors = random_qkv(sched.meta, decode_tokens=decode_tokens)
    outcome = run(sched, *tensors, decode_tokens=decode_tokens)
    error = float(np.abs(outcome.out - dense_attention(*tensors)).max())
    expect(error <= EXACT, case, f"the output differs from dense attention by {error:.1e}")
    expect(outcome.certificate.is_exact, case, "some block has not exactly one holder at the end of prefill")
    expect(outcome.peak_bytes == report.peak_bytes, case, f"peaks {outcome.peak_bytes}: expected {report.peak_bytes}")
    decode = {name: size * decode_tokens for name, size in report.decode_traffic.items()}
    for stage, traffic in ((PREFILL, report.traffic), (DECODE, decode)):
        moved = outcome.trace.bytes_by_purpose(stage)
        expect(moved == traffic, case, f"bytes moved {moved}: expected {traffic}")
    expect(parse(dump(sched)) == sched, case, "the text form does not read back")
    expect(from_bytes(to_bytes(sched)) == sched, case, "the bytes do not read back")
    return outcome


def _check_budgets(policy: Policy, request: PlanRequest, peak: int) -> int:
    count = 0
    for budget in (peak, peak * 3 // 4, peak // 2):
        tight = _with_budget(request, budget)
        try:
            report = _check_plan(policy, tight)
        except InfeasibleError as error:
            expect(budget < peak, _case(tight), "refused with the memory that it used before")
            expect(error.missing_bytes > 0, _case(tight), f"refused with {error.missing_bytes} bytes missing")
        else:
            expect(max(report.peak_bytes) <= budget, _case(tight), "the plan needs more than the budget")
            count += 1
    return count


def _with_budget(request: PlanRequest, budget: int) -> PlanRequest:
    cluster = request.cluster
    small = Cluster.uniform(cluster.topology.name, cluster.num_nodes, kv_budget_bytes=budget)
    return replace(request, cluster=small)
