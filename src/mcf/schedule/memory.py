"""Bytes that a node's KV memory must have, by arithmetic: pages of owners and copies, stream slots, decode reserve."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from mcf.schedule.deadlock import last_uses, use_pairs
from mcf.schedule.passes import group_keys
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import DECODE, FREE, KEEP, KV, PRODUCE, RECV, STREAM


def generated_tokens(num_nodes: int, node: int, count: int, page_tokens: int) -> int:
    """Of `count` generated tokens, how many fall to `node`: pages go round robin (semantics 7)."""
    cycle = num_nodes * page_tokens
    whole, rest = divmod(count, cycle)
    return whole * page_tokens + min(max(rest - node * page_tokens, 0), page_tokens)


def group_row_bytes(sched: Schedule) -> Array:
    """[G] KV bytes of one token in one layer, per head group."""
    cuts = sched.meta.head_cuts
    return np.array([sched.meta.kv_row_bytes(b - a) for a, b in pairwise(cuts)], dtype=np.int64)


def block_bytes(sched: Schedule) -> Array:
    """[C, N, G] bytes of a copy with pages of its own, over all layers."""
    page = sched.meta.page_tokens
    pages = -(-sched.tokens // page) * page * sched.meta.num_layers
    return pages[:, :, None] * group_row_bytes(sched)[None, None, :]


def own_tokens(sched: Schedule) -> Array:
    """[C+1, N, G] tokens of blocks that each node made and owns, before each chunk (cumulative)."""
    meta = sched.meta
    mine = sched.owner == np.arange(meta.num_nodes)[None, :, None]
    out = np.zeros((meta.num_chunks + 1, meta.num_nodes, meta.num_groups), dtype=np.int64)
    out[1:] = (sched.tokens[:, :, None] * mine).cumsum(0)
    return out


def own_bytes(sched: Schedule) -> Array:
    """[C+1, N] bytes of the pages that own blocks fill consecutively, before each chunk (cumulative)."""
    page = sched.meta.page_tokens
    pages = -(-own_tokens(sched) // page) * page * sched.meta.num_layers
    out: Array = (pages * group_row_bytes(sched)).sum(-1)
    return out


def reserve_bytes(sched: Schedule) -> Array:
    """[N] bytes of further pages that `max_new_tokens` generated tokens need, taken from the start."""
    meta = sched.meta
    page = meta.page_tokens
    counts = [generated_tokens(meta.num_nodes, n, meta.max_new_tokens, page) for n in range(meta.num_nodes)]
    own = own_tokens(sched)[-1]
    more = -(-(own + np.array(counts)[:, None]) // page) - (-(-own // page))
    out: Array = (more * page * meta.num_layers * group_row_bytes(sched)).sum(-1)
    return out


def stream_bytes(sched: Schedule, num_tokens: int, h_lo: int, h_hi: int, ahead: int) -> int:
    """Bytes of a stream receive's slots: its pages, one layer each, `ahead + 1` times."""
    meta = sched.meta
    return meta.pages(num_tokens) * meta.page_tokens * meta.kv_row_bytes(h_hi - h_lo) * (ahead + 1)


def peak_bytes(sched: Schedule) -> Array:
    """[N] the most KV bytes that each node has in use at once: what V4 compares with the budgets, by column arithmetic.

    For schedules whose other laws hold; `verify` replays the same numbers row by row.
    """
    taken = taken_bytes(sched)
    back = np.zeros(len(sched), dtype=np.int64)
    keys = group_keys(sched.steps, sched.meta.num_chunks)
    streams = np.flatnonzero((sched.steps["kind"] == RECV) & (sched.steps["hold"] == STREAM))
    last = last_uses(sched, use_pairs(sched))[streams]
    ends = np.searchsorted(keys, keys[streams], side="right") - 1
    np.add.at(back, np.where(last >= 0, last, ends), taken[streams])
    used = last >= 0
    later = _in_use_later(sched, keys, taken, back, streams[used], last[used])
    in_use = np.maximum(_in_use(taken, back), later)
    out = reserve_bytes(sched)
    for node in range(sched.meta.num_nodes):
        rows = sched.node_rows(node)
        if len(rows):
            before = taken[: rows.start].sum() - back[: rows.start].sum()
            out[node] += max(int(in_use[rows.start : rows.stop].max() - before), 0)
    return out


def _in_use(taken: Array, back: Array) -> Array:
    """[R] bytes in use while a row runs: what rows up to it took, less what rows before it gave back."""
    out: Array = taken.cumsum() - (back.cumsum() - back)
    return out


def _in_use_later(sched: Schedule, keys: Array, taken: Array, back: Array, streams: Array, last: Array) -> Array:
    """[R] most bytes in the later layers of a row's group: one-layer streams beside what lasts for the loop."""
    if sched.meta.num_layers == 1 or not len(keys):
        return taken.cumsum() * 0
    passing, given = np.zeros_like(taken), np.zeros_like(taken)
    passing[streams] = taken[streams]
    np.add.at(given, last, taken[streams])
    now = _in_use(passing, given)
    starts = np.flatnonzero(np.diff(keys, prepend=-1))
    ends = np.append(starts[1:], len(keys)) - 1
    most = _in_use(taken, back)[ends] - now[ends] + np.maximum.reduceat(now, starts)
    out: Array = np.repeat(most, ends - starts + 1)
    return out


def taken_bytes(sched: Schedule) -> Array:
    """[R] bytes that a row takes; what a free gives back is negative."""
    s, meta = sched.steps, sched.meta
    out = np.zeros(len(s), dtype=np.int64)
    copies = _set_sums(sched, block_bytes(sched))
    rows = np.flatnonzero((s["kind"] == RECV) & (s["hold"] == KEEP))
    out[rows] = copies(s[rows])
    rows = np.flatnonzero(s["kind"] == FREE)
    out[rows] = -copies(s[rows])
    rows = np.flatnonzero((s["kind"] == RECV) & (s["payload"] == KV) & (s["hold"] == STREAM))
    pages = -(-_set_tokens(sched, s[rows]) // meta.page_tokens) * meta.page_tokens
    heads = (s["h_hi"] - s["h_lo"])[rows].astype(np.int64)
    out[rows] = pages * heads * meta.kv_row_bytes(1) * (s["ahead"][rows] + 1)
    rows = np.flatnonzero((s["kind"] == PRODUCE) & (s["stage"] != DECODE))
    out[rows] = _produced_bytes(sched)[s["chunk"][rows], s["node"][rows]]
    return out


def _produced_bytes(sched: Schedule) -> Array:
    """[C, N] bytes that a produce takes: pages that own blocks grow by, and whole blocks made for another owner."""
    foreign = sched.owner != np.arange(sched.meta.num_nodes)[None, :, None]
    out: Array = np.diff(own_bytes(sched), axis=0) + (block_bytes(sched) * foreign).sum(-1)
    return out


def _set_tokens(sched: Schedule, rows: Array) -> Array:
    """[R] prompt tokens of each row's block set."""
    p = np.asarray(sched._prefix, dtype=np.int64)
    c_lo, c_hi, m_lo, m_hi = (rows[name] for name in ("c_lo", "c_hi", "m_lo", "m_hi"))
    out: Array = p[c_hi, m_hi] - p[c_lo, m_hi] - p[c_hi, m_lo] + p[c_lo, m_lo]
    return out


def _set_sums(sched: Schedule, values: Array) -> Callable[[Array], Array]:
    """Sum [C, N, G] values over the block set of each row."""
    p = np.zeros(tuple(n + 1 for n in values.shape), dtype=np.int64)
    p[1:, 1:, 1:] = values.cumsum(0).cumsum(1).cumsum(2)
    cuts, last = np.array(sched.meta.head_cuts), sched.meta.num_chunks

    def total(rows: Array) -> Array:
        c = np.minimum(rows["c_lo"], last), np.minimum(rows["c_hi"], last)
        m, g = (rows["m_lo"], rows["m_hi"]), (np.searchsorted(cuts, rows["h_lo"]), np.searchsorted(cuts, rows["h_hi"]))
        corners = (((i + j + k) % 2, p[c[i], m[j], g[k]]) for i in (0, 1) for j in (0, 1) for k in (0, 1))
        return sum((part if odd else -part for odd, part in corners), np.zeros(len(rows), dtype=np.int64))

    return total
