"""The trace: two tables and what is known about the run, its byte form, and the numbers read from it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.errors import UserError
from mcf.schedule.steps import COMPUTE, NIC, PREFILL, PURPOSE_NAMES, RECV, SEND
from mcf.trace.columns import EVENT, MEMORY, Table
from mcf.trace.intervals import Intervals, clip, covered_s

MAGIC = b"MCF trace 1\n"
_LENGTH_BYTES = 8
_DAMAGED = "expected bytes that Trace.to_bytes wrote; record the run again"


def _no_memory() -> Table:
    return np.zeros(0, MEMORY)


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace:
    """What happened in a run: `events` (columns `EVENT`), `memory` (columns `MEMORY`), `meta` (plain JSON values)."""

    events: Table
    memory: Table = field(default_factory=_no_memory)
    meta: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.events.dtype == EVENT, self.events.dtype
        assert self.memory.dtype == MEMORY, self.memory.dtype
        assert _is_sound(self.events, self.memory), "not sound: a time, or a purpose"

    # --- bytes ---

    def to_bytes(self) -> bytes:
        """Return the trace as bytes: a JSON header, then the raw little-endian rows of both tables."""
        counts = {"num_events": len(self.events), "num_memory": len(self.memory)}
        header = json.dumps({**counts, "meta": self.meta}, allow_nan=False, sort_keys=True).encode()
        length = len(header).to_bytes(_LENGTH_BYTES, "little")
        return b"".join([MAGIC, length, header, self.events.tobytes(), self.memory.tobytes()])

    @classmethod
    def from_bytes(cls, data: bytes) -> "Trace":
        """Return the trace that `to_bytes` wrote. Raises UserError if the bytes are anything else."""
        header, body = _split(data)
        cut = header["num_events"] * EVENT.itemsize
        if cut + header["num_memory"] * MEMORY.itemsize != len(body):
            raise UserError(f"a trace of {len(data)} bytes does not have the length that its header says: {_DAMAGED}")
        events, memory = np.frombuffer(body[:cut], EVENT).copy(), np.frombuffer(body[cut:], MEMORY).copy()
        if not _is_sound(events, memory):
            raise UserError(f"a trace with an unsound time or an unknown purpose: {_DAMAGED}")
        return cls(events=events, memory=memory, meta=header["meta"])

    # --- transfers ---

    def bytes_by_purpose(self, stage: int | None = None) -> dict[str, int]:
        """Return payload bytes per purpose (every purpose is listed) over all links, in one stage or in all."""
        sends = self._sends(stage)
        totals = np.zeros(max(PURPOSE_NAMES) + 1, np.int64)
        np.add.at(totals, sends["purpose"], sends["payload_bytes"])
        return {name: int(totals[code]) for code, name in PURPOSE_NAMES.items()}

    def bytes_per_link_and_purpose(self, stage: int | None = None) -> dict[tuple[int, int, str], int]:
        """Return payload bytes per (sending node, receiving node, purpose); links without traffic are left out."""
        sends = self._sends(stage)
        keys, places = np.unique(sends[["node", "peer", "purpose"]], return_inverse=True)
        totals = np.zeros(len(keys), np.int64)
        np.add.at(totals, places, sends["payload_bytes"])
        pairs = zip(keys.tolist(), totals.tolist(), strict=True)
        return {(node, peer, PURPOSE_NAMES[purpose]): total for (node, peer, purpose), total in pairs}

    def _sends(self, stage: int | None) -> Table:
        events = self.events
        keep = (events["kind"] == SEND) & (events["purpose"] > 0) & (events["wait"] == 0)
        if stage is not None:
            keep &= events["stage"] == stage
        sends: Table = events[keep]
        return sends

    # --- times ---

    def interval(self, node: int | None = None, stage: int | None = None) -> tuple[float, float]:
        """Return first start and last end in seconds of a node's (or all) events in a stage (or all).

        Raises UserError if there is no such event.
        """
        events = self.events
        everything = np.ones(len(events), np.bool_)
        of_node = everything if node is None else events["node"] == node
        chosen = events[of_node & (everything if stage is None else events["stage"] == stage)]
        if not len(chosen):
            raise UserError(f"the trace has no event of node {node} and stage {stage}: expected at least one")
        return float(chosen["t_start"].min()), float(chosen["t_end"].max())

    def breakdown(self, node: int, t0: float, t1: float) -> dict[str, float]:
        """Return how node spent t0..t1, in seconds.

        `compute_s`: the compute lane at work; `communication_s`: transfers under way, overlapped or not;
        `exposed_communication_s`: the compute lane blocked on communication and not at work; `other_s`: the rest, so
        that compute + exposed + other = t1 - t0.
        """
        of_node = self.events[self.events["node"] == node]
        waits = of_node["wait"] > 0
        transfers = (of_node["lane"] == NIC) & np.isin(of_node["kind"], (SEND, RECV)) & (of_node["purpose"] > 0)
        work = _intervals(of_node[(of_node["lane"] == COMPUTE) & ~waits], t0, t1)
        blocked = _intervals(of_node[waits], t0, t1)
        compute_s, busy_s = covered_s(work), covered_s(np.concatenate([work, blocked]))
        return {
            "compute_s": compute_s,
            "communication_s": covered_s(_intervals(of_node[transfers & ~waits], t0, t1)),
            "exposed_communication_s": max(0.0, busy_s - compute_s),
            "other_s": max(0.0, t1 - t0 - busy_s),
        }

    def last_node(self) -> int:
        """Return the node whose prefill work finished last (the lowest of equals). Raises UserError without prefill."""
        events = self.events
        prefill = events[(events["stage"] == PREFILL) & (events["lane"] == COMPUTE)]
        if not len(prefill):
            raise UserError("the trace has no prefill work: expected the trace of a run with a prompt")
        return int(prefill["node"][prefill["t_end"] == prefill["t_end"].max()].min())

    # --- memory ---

    def peak_bytes(self) -> dict[int, int]:
        """Return each sampled node's largest KV bytes in use."""
        nodes, places = np.unique(self.memory["node"], return_inverse=True)
        peaks = np.zeros(len(nodes), np.int64)
        np.maximum.at(peaks, places, self.memory["bytes_in_use"])
        return dict(zip(nodes.tolist(), peaks.tolist(), strict=True))


def concat(traces: Sequence[Trace]) -> Trace:
    """Join traces on one clock, in the order given; where two `meta` share a key, the later one counts."""
    meta: dict[str, Any] = {}
    for trace in traces:
        meta |= trace.meta
    events = np.concatenate([np.zeros(0, EVENT), *(trace.events for trace in traces)])
    return Trace(events=events, memory=np.concatenate([_no_memory(), *(trace.memory for trace in traces)]), meta=meta)


def _intervals(events: Table, t0: float, t1: float) -> Intervals:
    return clip(np.stack([events["t_start"], events["t_end"]], axis=1), t0, t1)


def _is_sound(events: Table, memory: Table) -> bool:
    """Tell whether times are finite, no event ends before it starts, and purposes are known."""
    times: NDArray[np.float64] = np.concatenate([events["t_start"], events["t_end"], memory["t"]])
    forward = (events["t_start"] <= events["t_end"]).all()
    return bool(np.isfinite(times).all() and forward and (events["purpose"] <= max(PURPOSE_NAMES)).all())


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    start = len(MAGIC) + _LENGTH_BYTES
    if not data.startswith(MAGIC) or len(data) < start:
        raise UserError(f"a trace that starts with {data[: len(MAGIC)]!r}: {_DAMAGED}")
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        header = json.loads(data[start:end])
        sizes = [header["num_events"], header["num_memory"]]
        sound = isinstance(header["meta"], dict) and all(type(size) is int and size >= 0 for size in sizes)
    except (ValueError, KeyError, TypeError, RecursionError):
        sound = False
    if not sound:
        raise UserError(f"a trace whose header cannot be read: {_DAMAGED}")
    return header, data[end:]
