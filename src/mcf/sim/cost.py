"""What a compute row takes, in seconds: the larger of arithmetic and memory traffic, and the overhead of a step.

    produce   2 W_l T / P          or  W_l w / BW          W_l weights of one layer, T tokens, w bytes per weight
    attend    4 d H_q pairs / P_a  or  KV bytes / BW       pairs: (query, key) with query position >= key position;
                                                   P_a the speed of attention, P where it is not known
    merge     4 d H_q T k / P      or  (k + 1) states / BW k partial states of T tokens

All of a layer's dense work stands in its `produce`; the part behind the attention really runs after the merge, which
changes the order inside a node and no sum. The set of an attend is read once.
"""

import numpy as np

from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import ATTEND, DECODE, MERGE, PRODUCE
from mcf.sim.profile import Profile

STATE_WIDTH_BYTES = 4  # partial states are float32


def chunk_pairs(sched: Schedule, chunk: int) -> Array:
    """[N, N] visible (query, key) pairs inside one chunk, by query node and maker."""
    num_nodes = sched.meta.num_nodes
    pieces = sched.pieces[sched.pieces["chunk"] == chunk]
    sizes = (pieces["hi"] - pieces["lo"]).astype(np.int64)
    before = pieces["lo"][None, :] < pieces["lo"][:, None]
    pairs = before * sizes[:, None] * sizes[None, :] + np.diag(sizes * (sizes + 1) // 2)
    out = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    np.add.at(out, (pieces["node"][:, None], pieces["node"][None, :]), pairs)
    return out


def visible_pairs(sched: Schedule) -> Array:
    """[R] visible (query, key) pairs of each prefill attend, per head; 0 elsewhere. Exact: by positions."""
    s, num_chunks = sched.steps, sched.meta.num_chunks
    out = np.zeros(len(s), dtype=np.int64)
    rows = np.flatnonzero((s["kind"] == ATTEND) & (s["stage"] != DECODE))
    history = _tokens(sched, s[rows], np.minimum(s["c_hi"][rows], s["chunk"][rows]))
    out[rows] = sched.tokens[s["chunk"][rows], s["q"][rows]] * history
    rows = rows[s["c_hi"][rows] > s["chunk"][rows]]
    by_chunk = np.searchsorted(s["chunk"][rows], np.arange(num_chunks + 1), sorter=np.argsort(s["chunk"][rows]))
    order = rows[np.argsort(s["chunk"][rows], kind="stable")]
    for chunk in range(num_chunks):
        mine = order[by_chunk[chunk] : by_chunk[chunk + 1]]
        upto = np.pad(chunk_pairs(sched, chunk).cumsum(1), ((0, 0), (1, 0))) if len(mine) else None
        if upto is not None:
            q = s["q"][mine]
            out[mine] += upto[q, s["m_hi"][mine]] - upto[q, s["m_lo"][mine]]
    return out


def _tokens(sched: Schedule, rows: Array, c_hi: Array) -> Array:
    """[R] tokens of each row's block set, its chunks cut at `c_hi`."""
    upto = np.pad(sched.tokens.cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    c_lo, c_hi = np.minimum(rows["c_lo"], c_hi), np.minimum(c_hi, sched.meta.num_chunks)
    m_lo, m_hi = rows["m_lo"], rows["m_hi"]
    out: Array = upto[c_hi, m_hi] - upto[c_lo, m_hi] - upto[c_hi, m_lo] + upto[c_lo, m_lo]
    return out


def row_seconds(sched: Schedule, shape: ModelShape, profile: Profile) -> Array:
    """[R] seconds per layer of each prefill compute row; 0 elsewhere."""
    s, meta = sched.steps, sched.meta
    flops, moved = np.zeros(len(s)), np.zeros(len(s))
    speed = profile.by_node("flops_s", meta.num_nodes)[s["node"]]
    live = s["stage"] != DECODE
    rows = np.flatnonzero((s["kind"] == PRODUCE) & live)
    flops[rows] = 2.0 * shape.num_layer_weights * sched.tokens[s["chunk"][rows], s["node"][rows]]
    moved[rows] = shape.num_layer_weights * profile.weight_bytes
    rows = np.flatnonzero((s["kind"] == ATTEND) & live)
    heads = (s["h_hi"] - s["h_lo"])[rows].astype(np.int64)
    flops[rows] = 4.0 * meta.head_dim * meta.group_heads * heads * visible_pairs(sched)[rows]
    speed[rows] = profile.attention_by_node(meta.num_nodes)[s["node"][rows]]
    moved[rows] = _tokens(sched, s[rows], s["c_hi"][rows]) * heads * meta.kv_row_bytes(1)
    rows = np.flatnonzero((s["kind"] == MERGE) & live)
    inputs = (s["after_hi"] - s["after_lo"])[rows].astype(np.int64)
    states = sched.tokens[s["chunk"][rows], np.maximum(s["q"][rows], 0)] * (s["h_hi"] - s["h_lo"])[rows]
    flops[rows] = 4.0 * meta.head_dim * meta.group_heads * states * inputs
    moved[rows] = (inputs + 1) * states * meta.group_heads * (meta.head_dim + 2) * STATE_WIDTH_BYTES
    works = live & np.isin(s["kind"], (PRODUCE, ATTEND, MERGE))
    memory, overhead = (
        profile.by_node(name, meta.num_nodes)[s["node"]] for name in ("memory_bytes_s", "step_overhead_s")
    )
    out: Array = np.maximum(flops / speed, moved / memory) + works * overhead
    return out


def head_seconds(shape: ModelShape, profile: Profile) -> float:
    """Seconds of the output head for one token (eq. 23), on a usual node."""
    weights = shape.vocab_size * shape.hidden_size
    return max(2 * weights / profile.flops_s, weights * profile.weight_bytes / profile.memory_bytes_s)
