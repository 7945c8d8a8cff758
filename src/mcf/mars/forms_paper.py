"""Closed form of `mars-paper`: MARS as published."""

import numpy as np

from mcf.mars.form import Form, kv_bytes, needers_of, peaks_of, traffic_of, worst_of
from mcf.mars.job import Array, Job
from mcf.mars.replicas import default_alpha, r_reuse
from mcf.mars.slots import paper_slots
from mcf.mars.squeeze import squeezed_copies


def mars_paper(j: Job) -> Form:
    """Eq. 15 and 16: r copies of a block stay; who has none streams it, from the nearest copy.

    Exact where the budget never binds and no copy retires early; else an estimate for nodes that are all alike.
    """
    if j.S_node is None:
        return _paper_squeezed(j) if j.drain_chunks else _paper_unlimited(j)
    least = _paper_unlimited(j.replace(alpha=0))
    return least if least.peak_bytes.max() > j.S_node else _paper_squeezed(j)


def _paper_squeezed(j: Job) -> Form:
    r = paper_factors(j)
    copies, used = squeezed_copies(j, r)
    if (copies[-1] >= r - 1).all():
        return _paper_unlimited(j)
    free = _paper_unlimited(j, has_peaks=False)
    makers = j.N - 1 - copies
    fetched = (np.tril(makers, -1) * j.t.mean(1)[None, :]).sum(1) * kv_bytes(j)
    needers = needers_of(j)
    return Form(
        policy="mars-paper",
        job=j,
        traffic=traffic_of(free.traffic["new_kv"], (fetched * needers.sum(1)).sum()),
        peak_bytes=np.full(j.N, int(min(used.max(), j.S_node or used.max()))),
        into=free.into - int(free.fetched.sum()) + int(fetched.sum()),
        out_of=free.out_of,
        fetched=fetched,
    )


def _paper_unlimited(j: Job, *, has_peaks: bool = True) -> Form:
    r, needers = paper_factors(j), needers_of(j)
    made = j.t * kv_bytes(j)
    total = made.sum(1, keepdims=True)
    arrives = np.where(needers, total - made, _copies(j, made, r))
    lacks = (total - made - _copies(j, made, r)).cumsum(0) - (
        total - made - _copies(j, made, r)
    )  # [C, N] of the chunks before
    old = needers * lacks
    sources = ((made * (r < j.N)[:, None]).cumsum(0) - made * (r < j.N)[:, None]) * (needers.sum(1, keepdims=True) > 1)
    kept = _copies(j, j.pages(j.t), r).cumsum(0) * j.page_bytes * j.L
    return Form(
        policy="mars-paper",
        job=j,
        traffic=traffic_of(arrives.sum(), old.sum()),
        peak_bytes=peaks_of(j, lambda j, c: paper_slots(j, c, r), kept) if has_peaks else kept[-1],
        into=(arrives + old).sum(0),
        out_of=(made * (j.N > 1) + sources).sum(0),
        fetched=worst_of(old),
    )


def paper_factors(j: Job) -> Array:
    """[C] copies of each chunk's blocks (eq. 15): memory does not bind."""
    alpha = default_alpha(N=j.N, C=j.C) if j.alpha is None else j.alpha
    return np.array([r_reuse(c=c, C=j.C, N=j.N, alpha=alpha) for c in range(1, j.C + 1)])


def _before(x: Array) -> Array:
    """[C, N] sums over the chunks before each."""
    out: Array = x.cumsum(0) - x
    return out


def _copies(j: Job, x: Array, r: Array) -> Array:
    """[C, N] what a node holds of other makers' x [C, N], r [C] copies of each."""
    if j.has_relays:
        held = (j.ranks[None, :, :] < r[:, None, None]) & (j.ranks > 0)
        return np.asarray(np.einsum("cm,cmn->cn", x, held.astype(np.int64)))
    upto = np.concatenate([np.zeros((len(x), 1), dtype=np.int64), np.concatenate([x, x], 1).cumsum(1)], 1)
    last = np.arange(j.N)[None, :] + j.N
    out: Array = np.take_along_axis(upto, last, 1) - np.take_along_axis(upto, last - (r - 1)[:, None], 1)
    return out
