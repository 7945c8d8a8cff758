"""Legality of single rows as a table: a new step kind adds rows here. Each rule says what must hold and which rows
break it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mcf.errors import LawError
from mcf.schedule.passes import group_keys, is_retire
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    COMPUTE,
    CONVERGE,
    DECODE,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    NIC,
    NONE,
    PREFILL,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STATE,
    STREAM,
)
from mcf.schedule.text import grid


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One row of the table: `bad(schedule)` returns a mask of rows that break `text`."""

    law: str
    text: str
    bad: Callable[[Schedule], Array]


def _is(sched: Schedule, *kinds: int) -> Array:
    return np.isin(sched.steps["kind"], kinds)


def _outside(values: Array, lo: int, hi: int) -> Array:
    return (values < lo) | (values >= hi)


def _bad_lane(s: Schedule) -> Array:
    kind, lane = s.steps["kind"], s.steps["lane"]
    expected = np.where(_is(s, SEND, RECV), NIC, COMPUTE)
    out: Array = (lane != expected) & ~((kind == MERGE) & (lane == NIC))
    return out


def _bad_stage(s: Schedule) -> Array:
    stage, chunk, last = s.steps["stage"], s.steps["chunk"], s.meta.num_chunks
    late = np.where(is_retire(s.steps), stage == CONVERGE, stage == DECODE)
    out: Array = np.where(chunk == last, ~late, (stage != PREFILL) | _outside(chunk, 0, last))
    return out


def _bad_set(s: Schedule) -> Array:
    t, n = s.steps, s.meta.num_nodes
    last = np.where(t["stage"] == DECODE, s.meta.num_chunks + 1, np.minimum(t["chunk"] + 1, s.meta.num_chunks))
    last = np.where(is_retire(t), t["chunk"], last)
    bad = (t["c_lo"] < 0) | (t["c_hi"] <= t["c_lo"]) | (t["c_hi"] > last)
    return bad | (t["m_lo"] < 0) | (t["m_hi"] <= t["m_lo"]) | (t["m_hi"] > n) | (t["h_lo"] >= t["h_hi"])


def _bad_heads(s: Schedule) -> Array:
    cuts = np.array(s.meta.head_cuts)
    return ~(np.isin(s.steps["h_lo"], cuts) & np.isin(s.steps["h_hi"], cuts))


def _bad_payload(s: Schedule) -> Array:
    payload, hold = s.steps["payload"], s.steps["hold"]
    moves = _is(s, SEND, RECV)
    held = np.where(payload == KV, (hold == KEEP) | (hold == STREAM), hold == 0)
    out: Array = np.where(moves, ~(np.isin(payload, (KV, QUERY, STATE)) & held), (payload != 0) | (hold != 0))
    return out


def _bad_decode_payload(s: Schedule) -> Array:
    out: Array = _is(s, SEND) & (s.steps["stage"] == DECODE) & (s.steps["payload"] != STATE)
    return out


def _bad_ahead(s: Schedule) -> Array:
    t = s.steps
    too_far = (t["ahead"] < 0) | (t["ahead"] + 1 > s.meta.stream_slots)
    own_chunk = (t["ahead"] > 0) & (t["c_hi"] > t["chunk"])
    return np.where(_is(s, SEND, RECV) & (t["payload"] == KV), too_far | own_chunk, t["ahead"] != 0)


def _bad_query(s: Schedule) -> Array:
    q, stage = s.steps["q"], s.steps["stage"]
    named = _is(s, ATTEND, MERGE) | (_is(s, SEND, RECV) & np.isin(s.steps["payload"], (QUERY, STATE)))
    good = np.where(stage == DECODE, q == ALL, ~_outside(q, 0, s.meta.num_nodes))
    return np.where(named, ~good, q != NONE)


def _bad_order(s: Schedule) -> Array:
    keys = group_keys(s.steps, s.meta.num_chunks)
    bad = np.zeros(len(keys), dtype=bool)
    bad[1:] = np.diff(keys) < 0
    return bad


def _bad_retire_order(s: Schedule) -> Array:
    keys, retire = group_keys(s.steps, s.meta.num_chunks), is_retire(s.steps)
    bad = np.zeros(len(keys), dtype=bool)
    bad[1:] = retire[1:] & ~retire[:-1] & (keys[1:] == keys[:-1])
    return bad


def _bad_produce(s: Schedule) -> Array:
    t = s.steps
    rows = np.flatnonzero(_is(s, PRODUCE))
    keys = group_keys(t, s.meta.num_chunks)
    bad = np.zeros(len(t), dtype=bool)
    bad[rows] = (t["m_lo"][rows] != t["node"][rows]) | (t["m_hi"][rows] != t["node"][rows] + 1)
    bad[rows] |= (t["c_lo"][rows] != t["chunk"][rows]) | (t["c_hi"][rows] != t["chunk"][rows] + 1)
    bad[rows[1:]] |= keys[rows[1:]] == keys[rows[:-1]]
    return bad


def _bad_early_compute(s: Schedule) -> Array:
    """Own queries attended, or own new KV or queries sent, before the group's produce."""
    t = s.steps
    keys = group_keys(t, s.meta.num_chunks)
    rows = np.flatnonzero(_is(s, PRODUCE))
    after = np.searchsorted(keys[rows], keys)
    found = after < len(rows)
    at = np.where(found, rows[np.minimum(after, max(len(rows) - 1, 0))] if len(rows) else 0, 0)
    has = found & (keys[at] == keys) if len(rows) else found
    produced = has & (np.arange(len(t)) > at)
    own = (_is(s, ATTEND) | (_is(s, SEND) & (t["payload"] == QUERY))) & (t["q"] == t["node"])
    own |= _is(s, ATTEND) & (t["q"] == ALL)
    out: Array = own & ~produced
    return out


def _bad_recv(s: Schedule) -> Array:
    out: Array = _is(s, RECV) != (s.steps["ref"] >= 0)
    return out


TABLE: tuple[Rule, ...] = (
    Rule(law="spec", text="the kind is one of the seven", bad=lambda s: _outside(s.steps["kind"], PRODUCE, FREE + 1)),
    Rule(law="spec", text="the node exists", bad=lambda s: _outside(s.steps["node"], 0, s.meta.num_nodes)),
    Rule(law="spec", text="the lane is the kind's own", bad=_bad_lane),
    Rule(law="spec", text="chunk and stage agree", bad=_bad_stage),
    Rule(law="spec", text="rows of a node stand in order of chunk and stage", bad=_bad_order),
    Rule(law="spec", text="drains and frees stand before their chunk's loop", bad=_bad_retire_order),
    Rule(law="spec", text="the set is not empty and not of the future", bad=_bad_set),
    Rule(law="spec", text="the KV-head span ends on head cuts", bad=_bad_heads),
    Rule(law="spec", text="sends and receives name a payload; KV is kept or streamed", bad=_bad_payload),
    Rule(law="spec", text="decode moves states only", bad=_bad_decode_payload),
    Rule(law="spec", text="ahead fits the stream slots and moves earlier chunks only", bad=_bad_ahead),
    Rule(law="spec", text="the query node fits the row", bad=_bad_query),
    Rule(law="spec", text="a produce makes its own node's blocks of its chunk, once", bad=_bad_produce),
    Rule(law="spec", text="own queries exist before they are attended or sent", bad=_bad_early_compute),
    Rule(law="spec", text="receives, and only they, refer to a send", bad=_bad_recv),
)
_KNOWN_KINDS = (PRODUCE, SEND, RECV, ATTEND, MERGE, DRAIN, FREE)


def check(sched: Schedule) -> None:
    """Judge every row by the table; raises LawError("spec") with the grid at the first bad row."""
    for rule in TABLE:
        bad = rule.bad(sched)
        if bad.any():
            row = int(bad.argmax())
            raise LawError(rule.law, f"expected that {rule.text}", row=row, grid=grid(sched, mark=row))
