"""Bytes that a node's KV memory must have, by arithmetic: pages of owners and copies, stream slots, decode reserve."""

import numpy as np

from mcf.schedule.schedule import Array, Schedule


def generated_tokens(num_nodes: int, node: int, count: int, page_tokens: int) -> int:
    """Of `count` generated tokens, how many fall to `node`: pages go round robin (semantics 7)."""
    cycle = num_nodes * page_tokens
    whole, rest = divmod(count, cycle)
    return whole * page_tokens + min(max(rest - node * page_tokens, 0), page_tokens)


def group_row_bytes(sched: Schedule) -> Array:
    """[G] KV bytes of one token in one layer, per head group."""
    cuts = sched.meta.head_cuts
    return np.array([sched.meta.kv_row_bytes(b - a) for a, b in zip(cuts, cuts[1:], strict=False)], dtype=np.int64)


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
