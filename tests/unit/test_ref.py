"""The reference executor on schedules small enough to know everything about."""

from dataclasses import replace

import numpy as np
import pytest

from mcf.errors import LawError, ScheduleError
from mcf.ref import Outcome, run
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, head_tail, unicast, verify
from mcf.schedule.kv import ABSENT, DRAINING, STREAMED, VALID
from mcf.schedule.steps import ATTEND, KEEP, MERGE, NIC, RECV, SEND, STREAM
from mcf.testing import dense_attention, random_qkv
from mcf.testing.editing import drop_rows, set_fields

META = ScheduleMeta(
    policy="test", num_nodes=2, prompt_tokens=10, chunk_tokens=4, num_layers=3, num_q_heads=4, num_kv_heads=2,
    head_dim=4, page_tokens=4, kv_bytes=2, act_bytes=2, max_new_tokens=6,
)  # fmt: skip
KV_TOKEN_BYTES = 2 * 2 * 4 * 2  # K and V, 2 heads of 4, 2 bytes


def gather(meta: ScheduleMeta = META, *, ahead: int = 0, hold: int = STREAM) -> Schedule:
    """Every node sends its history and its new block to all others in every chunk."""
    b = Builder(meta, cut(meta.prompt_tokens, meta.chunk_tokens, meta.num_nodes, head_tail))
    nodes = range(meta.num_nodes)
    for c in range(b.num_chunks):
        for n in nodes:
            b.produce(n, c)
            others = [m for m in nodes if m != n]
            if hold == STREAM:
                b.send_kv(n, others, c, chunks=(0, c), makers=(n, n + 1), ahead=ahead)
            b.send_kv(n, others, c, chunks=(c, c + 1), makers=(n, n + 1), hold=hold)
            own = [b.attend(n, c, chunks=(0, c + 1), makers=(n, n + 1))]
            far = [b.attend(n, c, chunks=s, makers=(m, m + 1)) for m in others for s in ((0, c), (c, c + 1))]
            b.merge(n, c, own + far)
    for n in nodes:
        for m in (m for m in nodes if m != n and hold == KEEP):
            b.drain(n, b.num_chunks, chunks=(0, b.num_chunks), makers=(m, m + 1))
            b.free(n, b.num_chunks, chunks=(0, b.num_chunks), makers=(m, m + 1))
    b.decode()
    return b.build()


def outcome_of(sched: Schedule, *, decode_tokens: int = 0, order: int | None = None) -> Outcome:
    verify(sched)
    return run(sched, *random_qkv(sched.meta, decode_tokens=decode_tokens), decode_tokens=decode_tokens, order=order)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("num_nodes", [1, 2, 3, 4])
def test_gather_is_dense_attention(num_nodes: int, ahead: int) -> None:
    meta = replace(META, num_nodes=num_nodes, budgets=())
    outcome = outcome_of(gather(meta, ahead=ahead), decode_tokens=6)
    dense = dense_attention(*random_qkv(meta, decode_tokens=6))
    assert np.abs(outcome.out - dense).max() <= 1e-12


def test_one_node_and_one_token() -> None:
    meta = replace(META, num_nodes=1, prompt_tokens=1, budgets=())
    outcome = outcome_of(gather(meta), decode_tokens=1)
    _, _, v = random_qkv(meta, decode_tokens=1)
    assert np.allclose(outcome.out[:, 0], np.repeat(v[:, 0], 2, axis=1), rtol=0, atol=1e-15)


def test_the_order_of_turns_changes_nothing() -> None:
    first = outcome_of(gather(ahead=1), decode_tokens=3)
    for order in range(8):
        again = outcome_of(gather(ahead=1), decode_tokens=3, order=order)
        assert np.array_equal(first.out, again.out)
        assert first.peak_bytes == again.peak_bytes
        assert first.residency.changes == again.residency.changes


def test_bytes_of_a_gather() -> None:
    outcome = outcome_of(gather(), decode_tokens=2)
    new = 10 * KV_TOKEN_BYTES * 3
    history = (4 + 8) * KV_TOKEN_BYTES * 3
    assert outcome.trace.bytes_by_purpose(0) == {"new_kv": new, "fetched_kv": history, "query": 0, "state": 0}
    state = 2 * 4 * (4 + 2) * 4 * 3 * 2  # 2 nodes, 4 heads of 4 + 2 float32, 3 layers, 2 tokens
    assert outcome.trace.bytes_by_purpose(2) == {"new_kv": 0, "fetched_kv": 0, "query": 0, "state": state}
    links = outcome.trace.bytes_per_link_and_purpose(2)
    assert links == {(0, 1, "state"): state // 2, (1, 0, "state"): state // 2}


def test_every_hop_of_a_route_counts() -> None:
    meta = replace(META, num_nodes=4, topology="ring", budgets=(), max_new_tokens=0)
    b = Builder(meta, cut(10, 4, 4, contiguous))
    for n in range(4):
        b.produce(n, 0)
    b.send_kv(0, [2], 0, chunks=(0, 1), makers=(0, 1), route=((0, 1), (1, 2)))
    sched = b.build()
    trace = run(sched, *random_qkv(meta)).trace
    assert trace.bytes_per_link_and_purpose() == {(a, b, "new_kv"): KV_TOKEN_BYTES * 3 for a, b in ((0, 1), (1, 2))}
    assert sched.receivers(int((sched.steps["kind"] == SEND).argmax())) == [2]


def test_peaks_are_pages_slots_and_reserve() -> None:
    page = 4 * KV_TOKEN_BYTES
    peaks = outcome_of(gather()).peak_bytes
    own = 2 * page * 3  # 5 tokens each: 2 pages in 3 layers
    reserve = (1, 0)  # 6 generated tokens: node 0 makes 4, node 1 makes 2, which its last page has room for
    slots = page + page  # the other's history (4 tokens) and its new block (1 token), one layer each
    assert peaks == tuple(own + r * page * 3 + slots for r in reserve)
    assert outcome_of(gather(ahead=1)).peak_bytes[1] == own + slots + page  # history lives in two layer slots


def test_residency_follows_the_list() -> None:
    sched = gather(hold=KEEP)
    residency = outcome_of(sched).residency
    rows = [sched.step(r) for r in sched.node_rows(0)]
    first_recv = next(i for i, s in enumerate(rows) if s.kind == RECV and s.hold == KEEP)
    assert residency.at(0, -1).max() == ABSENT
    assert residency.at(0, first_recv)[0, :, 0].tolist() == [ABSENT, VALID]
    last = max(i for i, s in enumerate(rows) if s.stage == 0)
    assert (residency.at(0, last) == VALID).all()
    assert residency.at(0, last + 1)[:, 1, 0].tolist() == [DRAINING] * 3
    assert residency.at(0, last + 2)[:, 1, 0].tolist() == [ABSENT] * 3
    assert residency.end(0)[:, :, 0].tolist() == [[VALID, ABSENT]] * 3


def test_stream_copies_are_forgotten_after_their_last_use() -> None:
    sched = gather()
    residency = outcome_of(sched).residency
    rows = [sched.step(r) for r in sched.node_rows(0)]
    recv = next(i for i, s in enumerate(rows) if s.kind == RECV)
    use = next(i for i, s in enumerate(rows) if s.kind == ATTEND and s.m_lo == 1)
    assert residency.at(0, recv)[0, 1, 0] == STREAMED
    assert residency.at(0, use - 1)[0, 1, 0] == STREAMED
    assert residency.at(0, use)[0, 1, 0] == ABSENT


def test_certificate_names_one_holder_for_each_block() -> None:
    certificate = outcome_of(gather(hold=KEEP)).certificate
    assert certificate.is_exact
    assert certificate.holder[:, :, 0].tolist() == [[0, 1]] * 3
    assert certificate.tokens == (5.0, 5.0)


def test_certificate_sees_a_copy_too_many() -> None:
    sched = gather(hold=KEEP)
    frees = np.flatnonzero(sched.steps["kind"] == 7)
    left = drop_rows(sched, frees[:1].tolist())
    certificate = run(left, *random_qkv(META)).certificate
    assert not certificate.is_exact


def test_a_lost_transfer_never_gives_a_number() -> None:
    sched = gather()
    s = sched.steps
    send = int(((s["kind"] == SEND) & (s["payload"] == 1)).argmax())
    lost = drop_rows(sched, [send, *np.flatnonzero(s["ref"] == send).tolist()])
    with pytest.raises(LawError, match="blocks that it does not hold") as caught:
        run(lost, *random_qkv(META))
    assert caught.value.law == "V6"
    assert ">> " in caught.value.grid


def test_a_second_copy_of_a_held_block_is_refused_by_the_transition_table() -> None:
    b = Builder(META, cut(10, 4, 2, contiguous))
    for n in (0, 1):
        b.produce(n, 0)
    for _ in range(2):
        b.send_kv(0, [1], 0, chunks=(0, 1), makers=(0, 1), hold=KEEP)
    with pytest.raises(ScheduleError, match="cannot recv"):
        run(b.build(), *random_qkv(META))


def ulysses(meta: ScheduleMeta) -> Schedule:
    """Each node attends all queries for its own KV heads: blocks and states of head groups cross."""
    b = Builder(meta, cut(meta.prompt_tokens, meta.chunk_tokens, 2, head_tail))
    for c in range(b.num_chunks):
        states: dict[int, list[int | None]] = {0: [], 1: []}
        for n in (0, 1):
            b.produce(n, c)
            b.send_kv(n, [1 - n], c, chunks=(0, c + 1), makers=(n, n + 1), heads=(1 - n, 2 - n))
            b.send_query(n, [1 - n], c, heads=(1 - n, 2 - n))
        for n in (0, 1):
            for q in (0, 1):
                row = b.attend(n, c, q=q, chunks=(0, c + 1), makers=(0, 2), heads=(n, n + 1))
                states[q].append(row if q == n else b.send_state(n, [q], c, of=row))
        for n in (0, 1):
            b.merge(n, c, states[n])
    b.decode()
    return b.build()


def test_head_groups() -> None:
    meta = replace(META, head_cuts=(0, 1, 2))
    outcome = outcome_of(ulysses(meta), decode_tokens=6, order=1)
    assert np.abs(outcome.out - dense_attention(*random_qkv(meta, decode_tokens=6))).max() <= 1e-12
    query = outcome.trace.bytes_by_purpose(0)["query"]
    assert query == 10 * 2 * 4 * 2 * 3  # each token's queries of one KV head (2 query heads of 4), 2 bytes, 3 layers


def test_hand_over_to_another_owner() -> None:
    """Node 0 computes everything, node 1 owns it: prefill and decode on different nodes."""
    pieces = cut(10, 4, 1, contiguous)
    meta = replace(META, shares=(0, 10))
    b = Builder(meta, pieces, {(c, 0, 0): 1 for c in range(3)})
    for c in range(3):
        b.produce(0, c)
        b.send_kv(0, [1], c, chunks=(c, c + 1), makers=(0, 1), hold=KEEP)
        b.merge(0, c, [b.attend(0, c, chunks=(0, c + 1), makers=(0, 1))])
    b.drain(0, 3, chunks=(0, 3), makers=(0, 1))
    b.free(0, 3, chunks=(0, 3), makers=(0, 1))
    b.decode()
    outcome = outcome_of(b.build(), decode_tokens=6)
    assert np.abs(outcome.out - dense_attention(*random_qkv(meta, decode_tokens=6))).max() <= 1e-12
    assert outcome.certificate.tokens == (0.0, 10.0)


def test_partial_merge_on_the_nic_lane_gives_one_state() -> None:
    b = Builder(replace(META, max_new_tokens=0), cut(10, 4, 2, contiguous))
    for c in range(3):
        for n in (0, 1):
            b.produce(n, c)
        b.send_query(1, [0], c)
        b.send_kv(1, [0], c, chunks=(0, c + 1), makers=(1, 2))
        parts = [b.attend(0, c, q=1, chunks=(i, i + 1), makers=(m, m + 1)) for i in range(c + 1) for m in (0, 1)]
        state = b.send_state(0, [1], c, of=b.merge(0, c, parts, q=1, lane=NIC))
        b.merge(0, c, [b.attend(0, c, chunks=(0, c + 1), makers=(0, 2))])
        b.merge(1, c, [state])
    sched = b.build()
    outcome = outcome_of(sched, order=2)
    assert np.abs(outcome.out - dense_attention(*random_qkv(META))).max() <= 1e-12
    s = sched.steps
    assert ((s["kind"] == MERGE) & (s["lane"] == NIC)).sum() == 3
    assert outcome.trace.bytes_by_purpose()["state"] == 5 * 4 * (4 + 2) * 4 * 3


def test_a_relay_passes_on_queries_states_and_blocks_in_unicast() -> None:
    meta = replace(META, num_nodes=4, topology="ring", budgets=())
    sched = gather(meta, ahead=1)
    plain = unicast(sched)
    s = plain.steps
    relayed = (s["kind"] == SEND) & (s["payload"] == 1) & (s["m_lo"] != s["node"])
    assert relayed.any()
    outcome = outcome_of(plain, decode_tokens=3, order=5)
    assert np.abs(outcome.out - dense_attention(*random_qkv(meta, decode_tokens=3))).max() <= 1e-12


@pytest.mark.parametrize("decode_tokens", [-1, 7])
def test_tokens_to_decode_must_fit_the_reserve(decode_tokens: int) -> None:
    with pytest.raises(ScheduleError, match="has room for 6"):
        run(gather(), *random_qkv(META), decode_tokens=decode_tokens)


def test_decode_needs_decode_rows() -> None:
    sched = gather()
    rows = np.flatnonzero(sched.steps["stage"] == 2).tolist()
    with pytest.raises(ScheduleError, match="no decode rows"):
        run(drop_rows(sched, rows), *random_qkv(META, decode_tokens=1), decode_tokens=1)


def test_tensors_must_fit() -> None:
    q, k, v = random_qkv(META)
    with pytest.raises(ScheduleError, match=r"got k of shape .*: the schedule expects \(3, 10, 2, 4\)"):
        run(gather(), q, k[:, :-1], v)


def test_a_wrong_row_is_not_repaired() -> None:
    """The reference decides nothing: a merge that misses a state gives a wrong answer, not a patched one."""
    sched = gather()
    row = int(((sched.steps["kind"] == ATTEND) & (sched.steps["chunk"] == 2)).argmax())
    wrong = set_fields(sched, row, c_hi=1)
    outcome = run(wrong, *random_qkv(META))
    assert np.abs(outcome.out - dense_attention(*random_qkv(META))).max() > 1e-3
