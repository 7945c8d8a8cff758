"""Each law refuses what breaks it: a legal schedule with one fault, named, at the right law, with the grid."""

import pytest
from hypothesis import HealthCheck, given, settings

from mcf.errors import LawError
from mcf.ref import run
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, verify
from mcf.schedule.steps import SEND, STREAM
from mcf.testing import MUTATIONS, Recipe, break_schedule, broken_schedules, random_qkv, random_schedule
from mcf.testing.editing import set_fields
from mcf.testing.mutations import Broken, Mutation

LAWS = {"V1", "V2", "V3", "V4", "V5", "V6", "V7", "V8", "spec"}
META = ScheduleMeta(
    policy="test", num_nodes=2, prompt_tokens=8, chunk_tokens=4, num_layers=2, num_q_heads=2, num_kv_heads=1,
    head_dim=2, page_tokens=4,
)  # fmt: skip


def first_broken(mutation: Mutation) -> Broken:
    """The first random schedule that has a place for the fault."""
    for seed in range(100):
        recipe = Recipe(num_nodes=3, prompt_tokens=31, topology=("switch", "ring")[seed % 2], seed=seed)
        broken = break_schedule(random_schedule(recipe), mutation, seed)
        if broken is not None:
            return broken
    raise AssertionError(f"no place for {mutation.name!r} in 100 schedules")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_each_fault_breaks_its_law(mutation: Mutation) -> None:
    broken = first_broken(mutation)
    with pytest.raises(LawError) as caught:
        verify(broken.schedule)
    assert caught.value.law == mutation.law, caught.value
    assert "\n" not in str(caught.value)
    assert caught.value.law == "V3" or ">> " in caught.value.grid


@given(broken=broken_schedules())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
def test_faults_anywhere_break_their_law(broken: Broken) -> None:
    with pytest.raises(LawError) as caught:
        verify(broken.schedule)
    assert caught.value.law == broken.law, (broken.name, caught.value)


def test_every_law_has_a_fault() -> None:
    assert {m.law for m in MUTATIONS} == LAWS


def two_chunks(*, remote_first: bool) -> Schedule:
    """Two nodes that attend each other's queries of chunk 1; before they make their own, or after."""
    b = Builder(META, cut(8, 4, 2, contiguous))
    for chunk in (0, 1):
        states: dict[int, list[int | None]] = {0: [], 1: []}
        remote = {}
        if remote_first and chunk:
            remote = {n: b.attend(n, 1, chunks=(0, 1), makers=(n, n + 1), q=1 - n) for n in (0, 1)}
        for n in (0, 1):
            b.produce(n, chunk)
            b.send_kv(n, [1 - n], chunk, chunks=(chunk, chunk + 1), makers=(n, n + 1))
            if chunk:
                b.send_query(n, [1 - n], chunk)
        for n in (0, 1):
            states[n] += [b.attend(n, chunk, chunks=(0, chunk + 1), makers=(n, n + 1))]
            states[n] += [b.attend(n, chunk, chunks=(chunk, chunk + 1), makers=(1 - n, 2 - n))]
        if chunk and not remote_first:
            remote = {n: b.attend(n, 1, chunks=(0, 1), makers=(n, n + 1), q=1 - n) for n in (0, 1)}
        for n, row in remote.items():
            states[1 - n].append(b.send_state(n, [1 - n], chunk, of=row))
        for n in (0, 1):
            b.merge(n, chunk, states[n])
    return b.build()


def test_queries_that_wait_for_each_other_dead_lock_in_verify_and_in_the_reference() -> None:
    verify(two_chunks(remote_first=False))
    sched = two_chunks(remote_first=True)
    for judge in (verify, lambda sched: run(sched, *random_qkv(META))):
        with pytest.raises(LawError) as caught:
            judge(sched)
        assert caught.value.law == "V6"
        assert ">> " in caught.value.grid
    assert "waits for the queries of node" in str(caught.value)


def test_a_send_cannot_be_further_ahead_than_its_blocks_arrive() -> None:
    b = Builder(ScheduleMeta(**vars(META) | {"num_nodes": 3, "budgets": ()}), cut(8, 4, 3, contiguous))
    for chunk in (0, 1):
        for n in range(3):
            b.produce(n, chunk)
        if chunk:
            b.send_kv(0, [1], 1, chunks=(0, 1), makers=(0, 1), hold=STREAM)
            b.send_kv(1, [2], 1, chunks=(0, 1), makers=(0, 1), hold=STREAM, ahead=1)
    with pytest.raises(LawError, match="further ahead") as caught:
        verify(b.build())
    assert caught.value.law == "V6"


def test_a_fixed_row_is_legal_again() -> None:
    sched = random_schedule(Recipe(num_nodes=2, seed=3))
    row = int((sched.steps["kind"] == SEND).argmax())
    broken = set_fields(sched, row, lane=0)
    with pytest.raises(LawError, match="lane") as caught:
        verify(broken)
    assert caught.value.row == row
    assert verify(set_fields(broken, row, lane=1)).num_rows == len(sched)
