"""The shipped checks judge: they pass what is right and name what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest

import mcf.testing
from mcf.cluster import Topology
from mcf.errors import InfeasibleError, LawError
from mcf.policies import NAMES, PlanRequest, plan
from mcf.ref import Outcome, run
from mcf.schedule import Schedule, unicast, verify
from mcf.testing import (
    CheckFailed,
    Recipe,
    check_executor,
    check_policy,
    check_schedule,
    check_topology,
    dense_attention,
    random_qkv,
    random_schedule,
)
from mcf.testing.editing import drop_rows, insert_row, set_fields
from mcf.testing.executors import standard_schedules
from mcf.testing.mutations import MUTATIONS
from mcf.testing.oracle import Array
from mcf.testing.policies import policy_requests
from mcf.trace import TraceBuilder


def test_public_names_are_sorted_and_there() -> None:
    names = mcf.testing.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(getattr(mcf.testing, name) is not None for name in names)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = mcf.testing.nothing


# --- the oracle ---


def test_dense_attention_of_two_tokens_by_hand() -> None:
    q = np.array([[[[1.0]], [[1.0]]]])
    v = np.array([[[[3.0]], [[5.0]]]])
    weight = 1 / (1 + np.exp(2.0))
    out = dense_attention(q, np.array([[[[2.0]], [[0.0]]]]), v)
    assert out.shape == (1, 2, 1, 1)
    assert out[0, :, 0, 0] == pytest.approx([3.0, 3 * (1 - weight) + 5 * weight], abs=1e-15)


def test_query_heads_share_their_groups_key() -> None:
    sched = random_schedule(Recipe(num_nodes=1, prompt_tokens=1, num_kv_heads=2, group_heads=2))
    q, k, v = random_qkv(sched.meta)
    assert np.array_equal(dense_attention(q, k, v)[:, 0], v[:, 0, [0, 0, 1, 1]])


# --- policies ---


@pytest.mark.parametrize("name", NAMES)
def test_our_policies_pass(name: str) -> None:
    requests = [r for r in policy_requests(prompts=((1, 4), (23, 8))) if r.stream_slots == 2]
    assert check_policy(partial(plan, name), requests) >= len(requests)


def request() -> PlanRequest:
    return next(r for r in policy_requests(prompts=((23, 8),)) if r.num_nodes == 3 and r.stream_slots == 2)


def test_a_policy_whose_plan_breaks_a_law_fails() -> None:
    def bad(req: PlanRequest) -> Schedule:
        sched = plan("gather", req)
        return set_fields(sched, int((sched.steps["kind"] == 4).argmax()), c_hi=2)

    with pytest.raises(LawError):
        check_policy(bad, [request()])


def test_a_policy_that_plans_something_else_fails() -> None:
    with pytest.raises(CheckFailed, match="the schedule's prompt_tokens is 22: the request says 23"):
        check_policy(lambda req: plan("gather", replace(req, prompt_tokens=22)), [request()])


def test_a_policy_that_draws_lots_fails() -> None:
    names = iter(("ring", "gather"))
    with pytest.raises(CheckFailed, match="planning twice"):
        check_policy(lambda req: plan(next(names), req), [request()])


def test_a_policy_that_refuses_what_it_could_do_fails() -> None:
    def greedy(req: PlanRequest) -> Schedule:
        if req.is_limited:
            raise InfeasibleError("got a budget: expected none", missing_bytes=1)
        return plan("gather", req)

    with pytest.raises(CheckFailed, match="refused with the memory that it used before"):
        check_policy(greedy, [request()])


# --- executors ---


@dataclass(frozen=True, kw_only=True)
class Twisted:
    """The reference with one thing changed: an executor with a fault."""

    change: Callable[[Outcome], Outcome]

    def __call__(self, schedule: Schedule, q: Array, k: Array, v: Array, *, decode_tokens: int) -> Outcome:
        return self.change(run(schedule, q, k, v, decode_tokens=decode_tokens, order=1))


def test_the_reference_in_another_order_passes() -> None:
    assert check_executor(Twisted(change=lambda outcome: outcome)) == len(standard_schedules())


def test_unicast_passes() -> None:
    assert check_executor(Twisted(change=lambda outcome: outcome), expand=unicast) == len(standard_schedules())


def shuffled_residency(outcome: Outcome) -> Outcome:
    changes = outcome.residency.changes[::-1]
    return replace(outcome, residency=replace(outcome.residency, changes=changes))


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("differs from the reference by", lambda o: replace(o, out=o.out + 1e-3)),
        ("output of shape", lambda o: replace(o, out=o.out[:1])),
        ("bytes moved per link and purpose differ", lambda o: replace(o, trace=TraceBuilder().to_trace())),
        ("holds other blocks at the end", shuffled_residency),
    ],
)
def test_a_faulty_executor_fails(text: str, change: Callable[[Outcome], Outcome]) -> None:
    with pytest.raises(CheckFailed, match=text):
        check_executor(Twisted(change=change), {"case": random_schedule(Recipe(max_new_tokens=1))})


def test_standard_schedules_use_everything() -> None:
    steps = np.concatenate([s.steps for s in standard_schedules().values()])
    assert set(steps["kind"].tolist()) == set(range(1, 8))
    assert set(steps["payload"].tolist()) == {0, 1, 2, 3}
    assert set(steps["hold"].tolist()) == {0, 1, 2}
    assert set(steps["stage"].tolist()) == {0, 1, 2}
    assert set(steps["ahead"].tolist()) == {0, 1}
    assert any(len(s.owners) for s in standard_schedules().values())


def test_a_schedule_is_judged_by_its_report() -> None:
    sched = random_schedule(Recipe(seed=2))
    report = verify(sched)
    check_schedule(sched, report)
    with pytest.raises(CheckFailed, match="here: peaks"):
        check_schedule(sched, replace(report, peak_bytes=(1, 2, 3)), case="here")
    with pytest.raises(CheckFailed, match="bytes moved"):
        check_schedule(sched, replace(report, traffic={}))


# --- topologies ---


@pytest.mark.parametrize("spec", ["switch", "ring", "ring:one-way", "mesh", "torus", "tree", "tree:3", "tree:1"])
def test_our_topologies_pass(spec: str) -> None:
    check_topology(spec)


class Shortcut(Topology):
    """A ring that routes as if it were a switch."""

    def route(self, a: int, b: int, *, tree: int = 0) -> tuple[tuple[int, int], ...]:
        return ((a, b),) if a != b else ()


class Forgetful(Topology):
    """A ring whose trees leave out the last receiver."""

    def multicast(self, root: int, dsts: object, *, tree: int = 0) -> tuple[tuple[int, int], ...]:
        return super().multicast(root, dsts, tree=tree)[:-1]  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "text"), [(Shortcut, "crosses what is no link"), (Forgetful, "does not reach all")])
def test_a_faulty_topology_fails(kind: type[Topology], text: str) -> None:
    with pytest.raises(CheckFailed, match=text):
        check_topology(lambda n: kind(name="ring", num_nodes=n))


# --- editing and drawing ---


def test_dropping_and_inserting_a_row_changes_nothing() -> None:
    sched = random_schedule(Recipe(num_nodes=2, seed=3))
    row = int((sched.steps["kind"] == 6).argmax())
    assert sched.steps["kind"][row] == 6
    assert insert_row(drop_rows(sched, [row]), row, sched.steps[row]) == sched


def test_the_same_recipe_draws_the_same_schedule() -> None:
    assert random_schedule(Recipe(seed=9)) == random_schedule(Recipe(seed=9))
    assert random_schedule(Recipe(seed=9)) != random_schedule(Recipe(seed=10))


def test_mutations_are_named_once() -> None:
    assert len({m.name for m in MUTATIONS}) == len(MUTATIONS)
    assert [m.name for m in MUTATIONS] == sorted(m.name for m in MUTATIONS)


def test_the_lazy_strategies_are_not_hidden_by_modules_of_their_names() -> None:
    for name in ("broken_schedules", "recipes", "schedules"):
        assert callable(getattr(mcf.testing, name))
