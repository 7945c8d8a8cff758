"""The columns of a schedule and their codes. This file, with meta.py and pieces.py, IS the format."""

from typing import NamedTuple

import numpy as np

PRODUCE, SEND, RECV, ATTEND, MERGE, DRAIN, FREE = range(1, 8)
KIND_NAMES = {1: "produce", 2: "send", 3: "recv", 4: "attend", 5: "merge", 6: "drain", 7: "free"}

COMPUTE, NIC = 0, 1
LANE_NAMES = {COMPUTE: "compute", NIC: "nic"}

PREFILL, CONVERGE, DECODE = 0, 1, 2
STAGE_NAMES = {PREFILL: "prefill", CONVERGE: "converge", DECODE: "decode"}

NO_PAYLOAD, KV, QUERY, STATE = 0, 1, 2, 3
PAYLOAD_NAMES = {NO_PAYLOAD: "-", KV: "kv", QUERY: "query", STATE: "state"}

NO_HOLD, KEEP, STREAM = 0, 1, 2
HOLD_NAMES = {NO_HOLD: "-", KEEP: "keep", STREAM: "stream"}

NONE = -1
ALL = -2  # query node of decode rows: every node computes the same token

COLUMNS = (
    *("kind", "lane", "stage", "node", "chunk", "c_lo", "c_hi", "m_lo", "m_hi", "h_lo", "h_hi"),
    *("payload", "hold", "ahead", "q", "dst", "route", "ref", "after_lo", "after_hi"),
)
STEP = np.dtype([(name, "<i4") for name in COLUMNS])
NUM_COLUMNS = len(COLUMNS)

OWNER = np.dtype([("chunk", "<i4"), ("maker", "<i4"), ("group", "<i4"), ("owner", "<i4")])

NEW_KV, FETCHED_KV, QUERY_BYTES, STATE_BYTES = 1, 2, 3, 4
PURPOSE_NAMES = {NEW_KV: "new_kv", FETCHED_KV: "fetched_kv", QUERY_BYTES: "query", STATE_BYTES: "state"}


class Step(NamedTuple):
    """A view of one row: the same columns by name."""

    kind: int
    lane: int
    stage: int
    node: int
    chunk: int
    c_lo: int
    c_hi: int
    m_lo: int
    m_hi: int
    h_lo: int
    h_hi: int
    payload: int
    hold: int
    ahead: int
    q: int
    dst: int
    route: int
    ref: int
    after_lo: int
    after_hi: int

    @property
    def is_retire(self) -> bool:
        """Say whether the row stands outside the layer loop."""
        return self.kind in (DRAIN, FREE)

    @property
    def is_kv_recv(self) -> bool:
        """Say whether the row posts memory for KV."""
        return self.kind == RECV and self.payload == KV
