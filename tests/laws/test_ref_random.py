"""Random legal schedules: the reference equals dense attention, whoever goes first, in every form."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcf.errors import LawError
from mcf.ref import Outcome, run
from mcf.schedule import Schedule, dump, from_bytes, parse, to_bytes, unicast, verify
from mcf.schedule.kv import ABSENT, ARRIVING, VALID, next_state
from mcf.schedule.memory import peak_bytes
from mcf.schedule.passes import place_recvs, strip_recvs
from mcf.schedule.steps import ATTEND, DECODE, DRAIN, FREE, KEEP, KV, PREFILL, PRODUCE, QUERY, RECV, SEND, STATE, STREAM
from mcf.testing import Recipe, check_schedule, dense_attention, random_qkv, random_schedule, schedules

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
KIND_EVENTS = {PRODUCE: "produce", DRAIN: "drain", FREE: "free"}


@given(sched=schedules(relay_late=True), order=st.integers(0, 2**20))
@settings(RELAXED, max_examples=150)
def test_every_schedule_gives_dense_attention_in_every_order(sched: Schedule, order: int) -> None:
    tokens = sched.meta.max_new_tokens
    first = check_schedule(sched, verify(sched), decode_tokens=tokens)
    second = run(sched, *random_qkv(sched.meta, decode_tokens=tokens), decode_tokens=tokens, order=order)
    assert np.array_equal(first.out, second.out)
    assert first.peak_bytes == second.peak_bytes == tuple(peak_bytes(sched).tolist())
    assert first.residency.changes == second.residency.changes
    assert first.trace.bytes_per_link_and_purpose() == second.trace.bytes_per_link_and_purpose()


@pytest.mark.parametrize("relay_late", [False, True])
@given(data=st.data(), order=st.integers(0, 2**20))
@settings(RELAXED, max_examples=50)
def test_unicast_gives_the_same_or_is_refused_for_its_relays(relay_late: bool, data: st.DataObject, order: int) -> None:
    sched = data.draw(schedules(relay_late=relay_late))
    law = broken_law(unicast(sched))
    if law:
        assert (law, has_relays(sched)) == ("V6", True)
    else:
        check_unicast(sched, order)


def broken_law(sched: Schedule) -> str | None:
    try:
        verify(sched)
    except LawError as error:
        return error.law
    return None


def check_unicast(sched: Schedule, order: int) -> None:
    plain = unicast(sched)
    s = plain.steps
    assert (s["dst"][s["kind"] == SEND] >= 0).all()
    tokens = sched.meta.max_new_tokens
    tensors = random_qkv(sched.meta, decode_tokens=tokens)
    outcome = run(plain, *tensors, decode_tokens=tokens, order=order)
    assert np.abs(outcome.out - dense_attention(*tensors)).max() <= 1e-12
    tree = run(sched, *tensors, decode_tokens=tokens)
    assert outcome.trace.bytes_per_link_and_purpose() == tree.trace.bytes_per_link_and_purpose()
    assert outcome.peak_bytes == verify(plain).peak_bytes
    assert unicast(plain) == plain


def has_relays(sched: Schedule) -> bool:
    """Whether a node passes on what another has sent: as plain sends, with few slots, these may wait in a circle."""
    s = sched.steps
    trees = (s["kind"] == SEND) & (s["dst"] < 0)
    routes = [(int(s["node"][row]), sched.routes[s["route"][row]]) for row in np.flatnonzero(trees)]
    return any(edge[0] != node for node, route in routes for edge in route)


@given(sched=schedules())
@settings(RELAXED, max_examples=60)
def test_text_and_bytes_read_back(sched: Schedule) -> None:
    assert parse(dump(sched)) == sched
    assert from_bytes(to_bytes(sched)) == sched
    assert dump(parse(dump(sched))) == dump(sched)


@given(sched=schedules())
@settings(RELAXED, max_examples=60)
def test_receives_can_be_taken_out_and_placed_again(sched: Schedule) -> None:
    bare = strip_recvs(sched)
    assert not (bare.steps["kind"] == RECV).any()
    assert place_recvs(bare) == sched


@given(sched=schedules(max_chunk=5))
@settings(RELAXED, max_examples=40)
def test_moved_bytes_are_the_arithmetic_of_rows(sched: Schedule) -> None:
    tokens = sched.meta.max_new_tokens
    outcome = run(sched, *random_qkv(sched.meta, decode_tokens=tokens), decode_tokens=tokens)
    events = outcome.trace.events
    moved = np.bincount(events["row"], weights=events["payload_bytes"], minlength=len(sched))
    s = sched.steps
    hops = np.array([len(sched.routes[r]) if r >= 0 else 1 for r in s["route"].tolist()])
    runs = sched.meta.num_layers * np.where(s["stage"] == DECODE, tokens, 1)
    assert np.array_equal(moved, sched.row_bytes * hops * runs)


@given(sched=schedules(max_chunk=5))
@settings(RELAXED, max_examples=40)
def test_residency_is_that_of_a_replay_row_by_row(sched: Schedule) -> None:
    outcome = run(sched, *random_qkv(sched.meta))
    for node in range(sched.meta.num_nodes):
        replay_list(sched, node, outcome)


def replay_list(sched: Schedule, node: int, outcome: Outcome) -> None:
    """Walk one node's list with the transition table alone and compare after each row."""
    shape = outcome.residency.shape
    state = np.full(shape, ABSENT, dtype=np.uint8)
    rows = sched.node_rows(node)
    for row in rows:
        step = sched.step(row)
        for event in events_of(step.kind, step.hold, step.stage):
            change(sched, state, row, event)
        for recv in streams_that_end(sched, rows, row):
            change(sched, state, recv, "release")
        seen = np.where(state == ARRIVING, VALID, state)
        assert np.array_equal(outcome.residency.at(node, row - rows.start), seen), (row, step)
    assert np.array_equal(outcome.residency.end(node), state)


def events_of(kind: int, hold: int, stage: int) -> list[str]:
    if kind == RECV:
        return {KEEP: ["recv", "arrive"], STREAM: ["stream"]}.get(hold, [])
    return [KIND_EVENTS[kind]] if kind in KIND_EVENTS and stage != DECODE else []


def change(sched: Schedule, state: np.ndarray, row: int, event: str) -> None:
    step = sched.step(row)
    groups = sched.groups(step.h_lo, step.h_hi)
    for chunk, maker in np.argwhere(sched.tokens > 0).tolist():
        if step.c_lo <= chunk < step.c_hi and step.m_lo <= maker < step.m_hi:
            for group in range(groups.start, groups.stop):
                state[chunk, maker, group] = next_state(int(state[chunk, maker, group]), event)


def streams_that_end(sched: Schedule, rows: range, row: int) -> list[int]:
    """Stream receives whose slots are free after a row: the last user of those not ahead, else the group's last row."""
    s = sched.steps
    here = s[rows.start : rows.stop]
    group = rows.start + np.flatnonzero((here["chunk"] == s["chunk"][row]) & (here["stage"] == s["stage"][row]))
    streams = group[(s["kind"][group] == RECV) & (s["hold"][group] == STREAM)]
    return [recv for recv in streams.tolist() if row == last_row_of(sched, group, recv)]


def last_row_of(sched: Schedule, group: np.ndarray, recv: int) -> int:
    r = sched.step(recv)
    if r.ahead:
        return int(group[-1])
    users = [row for row in group.tolist() if row > recv and uses(sched, row, recv)]
    return users[-1] if users else int(group[-1])


def uses(sched: Schedule, row: int, recv: int) -> bool:
    a, b = sched.step(row), sched.step(recv)
    reads = a.kind == ATTEND or (a.kind == SEND and a.payload == KV)
    meets = a.c_lo < b.c_hi and b.c_lo < a.c_hi and a.m_lo < b.m_hi and b.m_lo < a.m_hi
    return reads and meets and a.h_lo < b.h_hi and b.h_lo < a.h_hi


@pytest.mark.parametrize("payload", [KV, QUERY, STATE])
def test_random_schedules_move_every_payload(payload: int) -> None:
    s = random_schedule(Recipe(num_nodes=4, seed=1)).steps
    assert ((s["kind"] == SEND) & (s["payload"] == payload) & (s["stage"] == PREFILL)).any()


def test_trees_whose_relays_wait_for_each_other_are_refused() -> None:
    """Each node's second stream waits for the slot of its first, and each first comes through the other node."""
    shape = {
        "num_nodes": 4,
        "prompt_tokens": 17,
        "chunk_tokens": 7,
        "num_layers": 2,
        "num_kv_heads": 2,
        "group_heads": 1,
    }
    drawn = {
        "head_dim": 2,
        "page_tokens": 4,
        "stream_slots": 2,
        "topology": "mesh",
        "head_cuts": (0, 1, 2),
        "even": True,
    }
    how = {"max_new_tokens": 0, "hand_over": True, "multicast": True, "relay_late": True, "seed": 143658}
    sched = random_schedule(Recipe(**shape, **drawn, **how))
    with pytest.raises(LawError, match="wait for one another for ever") as caught:
        verify(sched)
    assert caught.value.law == "V6"
