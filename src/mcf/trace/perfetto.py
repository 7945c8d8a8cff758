"""Chrome trace-event JSON of a trace, for https://ui.perfetto.dev and chrome://tracing.

One process per node; the compute lane is one thread, the NIC lane as many as transfers overlap (slices of one thread
must not cross); the KV bytes in use are a counter. Times are microseconds from the first event.
Source: "Trace Event Format", Google, public document.
"""

from typing import Any

import numpy as np

from mcf.schedule.steps import KIND_NAMES, LANE_NAMES, NIC, PURPOSE_NAMES, STAGE_NAMES
from mcf.trace.columns import Table
from mcf.trace.trace import Trace

_TRACKS_PER_LANE = 1000  # thread numbers: lane * this + track
_NANOS = 1e9
_NANOS_PER_MICRO = 1e3

Json = dict[str, Any]


def to_perfetto(trace: Trace) -> Json:
    """Return the trace as a Chrome trace-event JSON object."""
    times = np.concatenate([trace.events["t_start"], trace.memory["t"]])
    zero = float(times.min()) if len(times) else 0.0
    events = _rows(trace.events)
    tracks = _tracks(events)
    slices = [_slice(event, tid, zero) for event, tid in zip(events, tracks, strict=True)]
    counters = [_counter(sample, zero) for sample in _rows(trace.memory)]
    return {
        "traceEvents": [*_names(trace, tracks), *slices, *counters],
        "displayTimeUnit": "ms",
        "otherData": trace.meta,
    }


def _rows(table: Table) -> list[Json]:
    """Return the table's rows as plain Python values by column name."""
    names = table.dtype.names or ()
    return [dict(zip(names, row, strict=True)) for row in table.tolist()]


def _tracks(events: list[Json]) -> list[int]:
    """Return each event's thread number: on a lane's first track where it crosses no other event."""
    ends: dict[tuple[int, int], list[list[float]]] = {}
    tracks = [0] * len(events)
    for index in sorted(range(len(events)), key=lambda i: (events[i]["t_start"], -events[i]["t_end"])):
        event = events[index]
        open_ends = ends.setdefault((event["node"], event["lane"]), [])
        track = _place(open_ends, event["t_start"], event["t_end"], may_nest=event["lane"] != NIC)
        tracks[index] = event["lane"] * _TRACKS_PER_LANE + track
    return tracks


def _place(open_ends: list[list[float]], t_start: float, t_end: float, may_nest: bool) -> int:
    """Put an event on the first track where it fits and return the track; each track is a stack of ends."""
    for track, stack in enumerate(open_ends):
        while stack and stack[-1] <= t_start:
            stack.pop()
        if not stack or (may_nest and t_end <= stack[-1]):
            stack.append(t_end)
            return track
    open_ends.append([t_end])
    return len(open_ends) - 1


def _slice(event: Json, tid: int, zero: float) -> Json:
    purpose = PURPOSE_NAMES.get(event["purpose"], "")
    stage = STAGE_NAMES.get(event["stage"], str(event["stage"]))
    return {
        "ph": "X",
        "name": _name(event, purpose),
        "cat": "wait" if event["wait"] else stage,
        "pid": event["node"],
        "tid": tid,
        "ts": _micros(zero, event["t_start"]),
        "dur": _micros(event["t_start"], event["t_end"]),
        "args": {"stage": stage, "purpose": purpose, **_numbers(event)},
    }


def _name(event: Json, purpose: str) -> str:
    words = ["wait"] if event["wait"] else []
    words += [KIND_NAMES.get(event["kind"], f"kind {event['kind']}"), purpose]
    words += [f"{letter}{event[column]}" for letter, column in (("c", "chunk"), ("l", "layer")) if event[column] >= 0]
    return " ".join(word for word in words if word)


def _numbers(event: Json) -> dict[str, int]:
    known = {name: event[name] for name in ("row", "chunk", "layer", "peer") if event[name] >= 0}
    return known | {"payload_bytes": event["payload_bytes"]}


def _counter(sample: Json, zero: float) -> Json:
    return {
        "ph": "C",
        "name": "KV bytes",
        "pid": sample["node"],
        "tid": 0,
        "ts": _micros(zero, sample["t"]),
        "args": {"bytes": sample["bytes_in_use"]},
    }


def _names(trace: Trace, tracks: list[int]) -> list[Json]:
    nodes = sorted({*trace.events["node"].tolist(), *trace.memory["node"].tolist()})
    threads = sorted(set(zip(trace.events["node"].tolist(), tracks, strict=True)))
    return [
        *(_label("process_name", node, 0, name=f"node {node}") for node in nodes),
        *(_label("process_sort_index", node, 0, sort_index=node) for node in nodes),
        *(_label("thread_name", node, tid, name=_thread_name(tid)) for node, tid in threads),
        *(_label("thread_sort_index", node, tid, sort_index=tid) for node, tid in threads),
    ]


def _thread_name(tid: int) -> str:
    lane, track = divmod(tid, _TRACKS_PER_LANE)
    name = LANE_NAMES.get(lane, f"lane {lane}")
    return name if track == 0 else f"{name} {track + 1}"


def _label(what: str, pid: int, tid: int, **args: str | int) -> Json:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}


def _micros(start: float, end: float) -> float:
    """Return end - start, both rounded to the nanosecond first so that neighbouring slices keep touching."""
    return (round(end * _NANOS) - round(start * _NANOS)) / _NANOS_PER_MICRO
