import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcf.trace
from mcf.errors import UserError
from mcf.schedule.steps import (
    ATTEND,
    COMPUTE,
    DECODE,
    FETCHED_KV,
    MERGE,
    NEW_KV,
    NIC,
    PREFILL,
    PRODUCE,
    RECV,
    SEND,
    STATE_BYTES,
)
from mcf.trace import EVENT, MEMORY, Trace, TraceBuilder, concat, to_perfetto, write_perfetto
from mcf.trace.intervals import clip, covered_s, union


def add(builder, kind, lane, node, t_start, t_end, stage=PREFILL, **rest):
    builder.event(kind=kind, lane=lane, stage=stage, node=node, t_start=t_start, t_end=t_end, **rest)


def small_trace():
    """Two nodes, one chunk; node 1 waits from 3 to 5 for what node 0 sends from 2 to 5."""
    builder = TraceBuilder()
    at = {"chunk": 0, "layer": 2}
    add(builder, PRODUCE, COMPUTE, 0, 1, 4, row=0, **at)
    add(builder, SEND, NIC, 0, 2, 5, row=1, peer=1, purpose=NEW_KV, payload_bytes=100, **at)
    add(builder, RECV, NIC, 1, 2, 5, row=2, peer=0, purpose=NEW_KV, payload_bytes=100, **at)
    add(builder, PRODUCE, COMPUTE, 1, 1, 3, row=3, **at)
    add(builder, ATTEND, COMPUTE, 1, 3, 5, wait=True, **at)
    add(builder, ATTEND, COMPUTE, 1, 5, 7, row=4, **at)
    add(builder, SEND, NIC, 1, 8, 9, DECODE, peer=0, purpose=STATE_BYTES, payload_bytes=7, chunk=1, layer=2)
    builder.memory(node=0, chunk=0, t=1, bytes_in_use=64)
    builder.memory(node=0, chunk=0, t=5, bytes_in_use=32)
    builder.memory(node=1, t=2, bytes_in_use=8)
    return builder.to_trace({"policy": "ring"})


def trace_of(events):
    """A trace of one node from (kind, lane, start, length, wait)."""
    builder = TraceBuilder()
    for kind, lane, start, length, wait in events:
        add(builder, kind, lane, 0, start, start + length, purpose=NEW_KV if kind in (SEND, RECV) else 0, wait=wait)
    return builder.to_trace()


event_rows = st.lists(
    st.tuples(
        st.sampled_from([PRODUCE, ATTEND, MERGE, SEND, RECV]),
        st.sampled_from([COMPUTE, NIC]),
        st.integers(0, 20),
        st.integers(0, 8),
        st.booleans(),
    ),
    max_size=15,
)


def test_the_public_face_is_complete_and_sorted():
    assert mcf.trace.__all__ == sorted(mcf.trace.__all__)
    assert all(hasattr(mcf.trace, name) for name in mcf.trace.__all__)


# --- builder and bytes -----------------------------------------------------------------------------------------------


def test_builder_keeps_every_column():
    event = small_trace().events[1]
    assert event.tolist() == (1, SEND, NIC, PREFILL, 0, 1, 0, 2, NEW_KV, 2.0, 5.0, 100, 0)
    defaults = small_trace().events[4]
    assert (defaults["row"], defaults["peer"], defaults["purpose"], defaults["wait"]) == (-1, -1, 0, 1)
    assert small_trace().memory[2].tolist() == (1, -1, 2.0, 8)


def test_builder_grows_in_order_and_can_go_on():
    builder = TraceBuilder()
    for index in range(10_000):
        add(builder, ATTEND, COMPUTE, 0, index, index, row=index)
    assert builder.to_trace().events["row"].tolist() == list(range(10_000))
    add(builder, ATTEND, COMPUTE, 0, 0, 0, row=10_000)
    assert len(builder.to_trace().events) == 10_001


@pytest.mark.parametrize("trace", [small_trace(), TraceBuilder().to_trace()], ids=["small", "empty"])
def test_bytes_round_trip(trace):
    back = Trace.from_bytes(trace.to_bytes())
    assert np.array_equal(back.events, trace.events)
    assert np.array_equal(back.memory, trace.memory)
    assert back.meta == trace.meta
    assert back.to_bytes() == trace.to_bytes()
    back.events["node"] = 3  # owned and writable, as the first was


def broken_bytes():
    good = small_trace().to_bytes()
    backwards = small_trace()
    backwards.events["t_end"][0] = 0
    strange = small_trace()
    strange.events["purpose"][0] = 99
    endless = small_trace()
    endless.memory["t"][0] = np.nan
    return {
        "empty": b"",
        "other": b"PK\x03\x04 something else entirely",
        "only_magic": good[:12],
        "no_header": good[:20],
        "cut": good[:-1],
        "longer": good + b"\0",
        "bad_json": good.replace(b'"num_events"', b'"num_events'),
        "bad_count": good.replace(b'"num_events": 7', b'"num_events": "'),
        "negative": good.replace(b'"num_events": 7', b'"num_events":-7'),
        "not_text": good.replace(b'"policy"', b'"\xff\xfe\xffic"'),
        "backwards": backwards.to_bytes(),
        "not_finite": endless.to_bytes(),
        "unknown_purpose": strange.to_bytes(),
    }


@pytest.mark.parametrize("name", broken_bytes())
def test_broken_bytes_are_refused_in_one_line(name):
    with pytest.raises(UserError, match="expected") as caught:
        Trace.from_bytes(broken_bytes()[name])
    assert "\n" not in str(caught.value)


def test_a_trace_checks_its_times_at_birth():
    events = small_trace().events
    events["t_start"][0] = np.inf
    with pytest.raises(AssertionError, match="sound"):
        Trace(events=events)


def test_concat_joins_tables_in_order_and_meta():
    one, two = small_trace(), Trace(events=np.zeros(1, EVENT), meta={"seed": 3, "policy": "full"})
    joined = concat([one, two])
    assert len(joined.events) == 8
    assert np.array_equal(joined.events[:7], one.events)
    assert np.array_equal(joined.memory, one.memory)
    assert joined.meta == {"policy": "full", "seed": 3}
    assert (concat([]).events.dtype, concat([]).memory.dtype) == (EVENT, MEMORY)


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_bytes_are_counted_once_at_the_sender():
    trace = small_trace()
    assert trace.bytes_by_purpose() == {"new_kv": 100, "fetched_kv": 0, "query": 0, "state": 7}
    assert trace.bytes_by_purpose(DECODE) == {"new_kv": 0, "fetched_kv": 0, "query": 0, "state": 7}
    assert trace.bytes_per_link_and_purpose() == {(0, 1, "new_kv"): 100, (1, 0, "state"): 7}
    assert trace.bytes_per_link_and_purpose(PREFILL) == {(0, 1, "new_kv"): 100}
    assert TraceBuilder().to_trace().bytes_per_link_and_purpose() == {}


def test_large_byte_counts_do_not_overflow():
    builder = TraceBuilder()
    for _ in range(3):
        add(builder, SEND, NIC, 0, 0, 0, peer=1, purpose=FETCHED_KV, payload_bytes=2**40)
    assert builder.to_trace().bytes_by_purpose()["fetched_kv"] == 3 * 2**40


def test_breakdown_of_a_wait_behind_a_transfer():
    breakdown = small_trace().breakdown(1, 0.0, 10.0)
    right = {"compute_s": 4, "communication_s": 3, "exposed_communication_s": 2, "other_s": 4}
    assert breakdown == pytest.approx({**right, "communication_s": 4})  # 2..5 received and 8..9 sent
    assert small_trace().breakdown(1, 0.0, 8.0) == pytest.approx({**right, "other_s": 2})
    assert small_trace().breakdown(5, 0.0, 8.0) == pytest.approx(dict.fromkeys(right, 0) | {"other_s": 8})


def test_postings_are_no_communication():
    builder = TraceBuilder()
    add(builder, RECV, NIC, 0, 0, 9, peer=1)
    assert builder.to_trace().breakdown(0, 0.0, 9.0)["communication_s"] == 0


@given(events=event_rows, window=st.tuples(st.integers(0, 25), st.integers(0, 25)).map(sorted))
def test_breakdown_equals_counting_unit_cells(events, window):
    cells = {"work": set(), "wait": set(), "transfer": set()}
    for kind, lane, start, length, wait in events:
        covered = set(range(max(start, window[0]), min(start + length, window[1])))
        if wait:
            cells["wait"] |= covered
        elif lane == COMPUTE:
            cells["work"] |= covered
        elif kind in (SEND, RECV):
            cells["transfer"] |= covered
    breakdown = trace_of(events).breakdown(0, *map(float, window))
    assert breakdown == pytest.approx(
        {
            "compute_s": len(cells["work"]),
            "communication_s": len(cells["transfer"]),
            "exposed_communication_s": len(cells["wait"] - cells["work"]),
            "other_s": window[1] - window[0] - len(cells["work"] | cells["wait"]),
        }
    )
    parts = breakdown["compute_s"] + breakdown["exposed_communication_s"] + breakdown["other_s"]
    assert parts == pytest.approx(window[1] - window[0])


@given(pairs=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=12))
def test_union_is_disjoint_and_covers_the_same(pairs):
    intervals = np.array([(start, start + length) for start, length in pairs], np.float64).reshape(-1, 2)
    joined = union(clip(intervals, 2.0, 18.0))
    cells = {cell for start, length in pairs for cell in range(max(2, start), min(18, start + length))}
    assert {cell for start, end in joined.astype(int) for cell in range(start, end)} == cells
    assert (joined[1:, 0] > joined[:-1, 1]).all()
    assert covered_s(intervals) == len({cell for start, length in pairs for cell in range(start, start + length)})


def test_last_node_is_the_one_whose_prefill_work_ended_last():
    assert small_trace().last_node() == 1
    tie = trace_of([(ATTEND, COMPUTE, 0, 5, False)])
    other = trace_of([(ATTEND, COMPUTE, 2, 3, False), (SEND, NIC, 2, 50, False)])
    other.events["node"] = 2
    assert concat([other, tie]).last_node() == 0
    with pytest.raises(UserError, match="expected"):
        TraceBuilder().to_trace().last_node()


def test_interval_of_node_and_stage():
    assert small_trace().interval() == (1, 9)
    assert small_trace().interval(node=0) == (1, 5)
    assert small_trace().interval(stage=DECODE) == (8, 9)
    with pytest.raises(UserError, match="expected"):
        small_trace().interval(node=0, stage=DECODE)


def test_peaks():
    assert small_trace().peak_bytes() == {0: 64, 1: 8}
    assert TraceBuilder().to_trace().peak_bytes() == {}


# --- Perfetto --------------------------------------------------------------------------------------------------------


def slices_of(trace):
    return [event for event in to_perfetto(trace)["traceEvents"] if event["ph"] == "X"]


def test_perfetto_has_processes_threads_slices_and_counters():
    events = to_perfetto(small_trace())["traceEvents"]
    labels = {(e["name"], e["pid"], e["tid"]): e["args"] for e in events if e["ph"] == "M"}
    assert labels["process_name", 1, 0] == {"name": "node 1"}
    assert labels["thread_name", 0, 0] == {"name": "compute"}
    assert labels["thread_name", 0, 1000] == {"name": "nic"}
    first, send = slices_of(small_trace())[:2]
    assert (first["name"], first["ts"], first["dur"], first["cat"]) == ("produce c0 l2", 0.0, 3e6, "prefill")
    assert (send["name"], send["ts"], send["dur"], send["tid"]) == ("send new_kv c0 l2", 1e6, 3e6, 1000)
    numbers = {"row": 1, "chunk": 0, "layer": 2, "peer": 1, "payload_bytes": 100}
    assert send["args"] == {"stage": "prefill", "purpose": "new_kv", **numbers}
    assert slices_of(small_trace())[4]["name"] == "wait attend c0 l2"
    counters = [(e["pid"], e["ts"], e["args"]) for e in events if e["ph"] == "C"]
    assert counters == [(0, 0.0, {"bytes": 64}), (0, 4e6, {"bytes": 32}), (1, 1e6, {"bytes": 8})]


@given(events=event_rows)
def test_perfetto_fields_are_valid_and_slices_of_a_thread_never_cross(events):
    text = json.dumps(to_perfetto(trace_of(events)), allow_nan=False)
    rows = json.loads(text)["traceEvents"]
    assert sum(row["ph"] == "X" for row in rows) == len(events)
    threads = {}
    for row in rows:
        assert row["ph"] in {"X", "M", "C"}
        assert type(row["pid"]) is int
        assert type(row["tid"]) is int
        assert row["ts"] >= 0
        assert row["name"]
        if row["ph"] == "X":
            assert row["dur"] >= 0
            assert math.isfinite(row["dur"])
            threads.setdefault(row["tid"], []).append((row["ts"], row["ts"] + row["dur"]))
    for spans in threads.values():
        for i, (a, b) in enumerate(spans):
            assert not any(a < c < b < d for c, d in spans[i + 1 :])
            assert not any(c < a < d < b for c, d in spans[i + 1 :])


def test_overlapping_transfers_get_tracks_of_their_own():
    trace = trace_of([(SEND, NIC, 0, 10, False), (SEND, NIC, 2, 3, False), (SEND, NIC, 5, 3, False)])
    assert [s["tid"] for s in slices_of(trace)] == [1000, 1001, 1001]
    names = [e["args"]["name"] for e in to_perfetto(trace)["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["nic", "nic 2"]


def test_neighbouring_slices_touch_in_spite_of_rounding():
    edges = [0.1, 0.1000000004, 0.2000000012, 0.3000000026]
    builder = TraceBuilder()
    for start, end in itertools.pairwise(edges):
        add(builder, ATTEND, COMPUTE, 0, start, end)
    rows = slices_of(builder.to_trace())
    for left, right in itertools.pairwise(rows):
        assert left["ts"] + left["dur"] == pytest.approx(right["ts"], abs=1e-7)


def test_write_perfetto(tmp_path):
    path = tmp_path / "trace.json"
    write_perfetto(path, small_trace())
    assert json.loads(path.read_text())["otherData"] == {"policy": "ring"}
    write_perfetto(path, TraceBuilder().to_trace())
    assert json.loads(path.read_text())["traceEvents"] == []


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    for path in (tmp_path, tmp_path / "no" / "folder.json"):
        with pytest.raises(UserError, match=r"cannot write the trace to .*expected.*give another path") as caught:
            write_perfetto(path, small_trace())
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None
