"""Closed forms of policies that bring KV to the queries: rings, gather, one-shot, full replication."""

import numpy as np

from mcf.mars.form import Form, kv_bytes, multicast, needers_of, own_bytes, peaks_of, traffic_of, worst_of
from mcf.mars.job import Job
from mcf.mars.slots import gather_slots, ring_slots


def ring(j: Job) -> Form:
    """Every block makes N - 1 hops round the ring in every chunk (eq. 21), on contiguous pieces."""
    return _ring("ring", j.replace(is_head_tail=False))


def zigzag(j: Job) -> Form:
    """The ring on head and tail pieces."""
    return _ring("zigzag", j)


def _ring(policy: str, j: Job) -> Form:
    after, before = np.empty(j.N, dtype=np.int64), np.empty(j.N, dtype=np.int64)
    after[j.cycle], before[j.cycle] = np.roll(j.cycle, -1), np.roll(j.cycle, 1)
    step = j.hops[np.arange(j.N), after]  # links from each node to the next
    around = step.sum() - step[before]  # [N] of a block of each maker
    new, fetched = j.t.sum(0) * kv_bytes(j), j.T[:-1].sum(0) * kv_bytes(j)
    passed = (new + fetched).sum() - (new + fetched)[after]  # a node passes on all but its successor's own
    many = passed * (j.N > 1)
    return Form(
        policy=policy,
        job=j,
        traffic=traffic_of((new * around).sum(), (fetched * around).sum()),
        peak_bytes=peaks_of(j, ring_slots),
        into=many[before],
        out_of=many,
    )


def gather(j: Job) -> Form:
    """Owner-only: in every chunk history and new KV go to all who have queries."""
    needers = needers_of(j)
    new, new_into, new_out = multicast(j, j.t * kv_bytes(j), needers)
    old, old_into, old_out = multicast(j, j.T[:-1] * kv_bytes(j), needers)
    return Form(
        policy="gather",
        job=j,
        traffic=traffic_of(new, old),
        peak_bytes=peaks_of(j, gather_slots),
        into=new_into + old_into,
        out_of=new_out + old_out,
        fetched=worst_of(needers * (j.T[:-1].sum(1, keepdims=True) - j.T[:-1])) * kv_bytes(j),
    )


def one_shot(j: Job) -> Form:
    """One chunk, the whole prompt: new KV goes to all nodes once."""
    found = gather(j.replace(B=j.S))
    return Form(**{**vars(found), "policy": "one-shot"})


def full(j: Job) -> Form:
    """Everything everywhere until the end of prefill (eq. 22)."""
    new, into, out = multicast(j, j.t * kv_bytes(j), np.ones((j.C, j.N), dtype=np.int64))
    blocks = j.pages(j.t) * j.page_bytes * j.L
    kept = blocks.sum() - blocks.sum(0)
    return Form(
        policy="full", job=j, traffic=traffic_of(new), peak_bytes=own_bytes(j)[-1] + kept, into=into, out_of=out
    )
