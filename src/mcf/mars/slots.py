"""Slots of streams: the most pages of one layer that arriving blocks take at once in a chunk's loop.

History that is fetched a layer ahead has its slots for the whole loop. Another stream is alive from where its receive
is posted, `stream_slots - 1` attends before its own (semantics 8), to its last use. In the later layers of a loop the
most that passes meets all that lasts for the loop (V4), so that the two add up.
"""

import numpy as np

from mcf.mars.job import Array, Job


def others(j: Job) -> Array:
    """[N, N-1] other makers in the order in which a node attends what it streams: n - 1, n - 2, ... (mod N)."""
    nodes = np.arange(j.N)
    out: Array = (nodes[:, None] - np.arange(1, j.N)[None, :]) % j.N
    return out


def _most_alive(late: Array, slots: int, forwarded: Array | None = None) -> Array:
    """[N] most pages alive of `late` [N, K] streams, by the index of the attend that uses them last.

    `forwarded` are those whose last use is a send just before the attend of that index.
    """
    N, K = late.shape
    passes = np.zeros((N, K), dtype=np.int64) if forwarded is None else forwarded
    padded = np.zeros((N, K + slots + 1), dtype=np.int64)
    padded[:, 1 : K + 1] = (late + passes).cumsum(1)
    padded[:, K + 1 :] = padded[:, K : K + 1]
    out: Array = (padded[:, slots : slots + K] - padded[:, :K] - passes).max(1, initial=0)
    return out


def _by_attend(sizes: Array, index: Array, num: int) -> Array:
    """[N, num] sizes added up by the index of the attend that they belong to."""
    places = (np.arange(len(sizes))[:, None] * num + index).reshape(-1)
    sums = np.bincount(places, weights=sizes.reshape(-1), minlength=len(sizes) * num)
    return sums.astype(np.int64).reshape(-1, num)


def _widest(sizes: Array, slots: int) -> Array:
    """[N] largest sum of `slots` neighbours round the ring of nodes, the node itself not among them."""
    N = len(sizes)
    if slots >= N - 1:
        return np.asarray(sizes.sum() - sizes)
    sums = np.sum([np.roll(sizes, i) for i in range(slots)], axis=0)  # of a node and those before it
    out = np.full(N, -1, dtype=np.int64)
    for last in np.argsort(-sums, kind="stable")[: slots + 1].tolist():
        is_in = (last - np.arange(N)) % N < slots
        out = np.where((out < 0) & ~is_in, sums[last], out)
    return out


def gather_slots(j: Job, c: int) -> Array:
    """[N] pages: history (two layers of it where it comes a layer ahead) and new blocks, of all other makers."""
    asks = j.t[c] > 0
    if not j.has_relays and (j.T[c] + j.t[c]).min() > 0:
        early, late = j.pages(j.T[c]) * j.ahead * 2, j.pages(j.t[c]) + j.pages(j.T[c]) * (j.ahead == 0)
        return np.asarray(asks * (early.sum() - early + _widest(late, j.stream_slots)))
    makers = others(j)
    history, new = j.pages(j.T[c])[makers] * (j.ahead + 1), j.pages(j.t[c])[makers]
    if j.has_relays:
        return _relayed(j, history, new)
    there = (j.T[c] + j.t[c] > 0)[makers]
    index = 1 + there.cumsum(1) - there
    late = _by_attend(new + history * (j.ahead == 0), index, j.N)
    return np.asarray(asks * (_most_alive(late, j.stream_slots) + history.sum(1) * j.ahead))


def _relayed(j: Job, history: Array, new: Array) -> Array:
    """[N] pages where nodes relay: no less than a replay finds, since all new blocks count."""
    out: Array = (history + new).sum(1)
    return out


def ring_slots(j: Job, c: int) -> Array:
    """[N] pages: each block comes from the node before, is passed on, and goes when it has been attended or sent."""
    if j.N == 1:
        return np.zeros(j.N, dtype=np.int64)
    place = np.argsort(j.cycle)
    if min(j.T[c].min(), j.t[c].min()) > 0:
        return _widest((j.pages(j.T[c]) + j.pages(j.t[c]))[j.cycle], j.stream_slots)[place]
    makers = j.cycle[(place[:, None] - np.arange(1, j.N)[None, :]) % j.N]
    asks = (j.t[c] > 0)[:, None]
    history, new = j.pages(j.T[c])[makers], j.pages(j.t[c])[makers]
    there = asks & (history + new > 0)
    index = asks + there.cumsum(1) - there
    goes_on = np.arange(1, j.N)[None, :] < j.N - 1
    attended = (history + new) * there
    sent = (history + new - attended) * goes_on
    unused = ((history + new - attended) * ~goes_on).sum(1)
    size = j.N + 1
    most = _most_alive(_by_attend(attended, index, size), j.stream_slots, _by_attend(sent, index, size))
    return np.asarray(unused + np.where(asks[:, 0], most, (history + new).sum(1) - unused))


def paper_slots(j: Job, c: int, r: Array) -> Array:
    """[N] pages of `mars-paper`: runs of history that a node has no copy of, two layers of each, and new blocks.

    r [C] are the copies of each chunk's blocks, non-increasing: node n holds those of maker n - s where r > s.
    """
    history = _missing_runs(j, c, r) * (j.ahead + 1)
    held_new = _ranks(j) < r[c]
    new = j.pages(j.t[c])[others(j)] * ~held_new
    asks = j.t[c] > 0
    if j.has_relays:
        return _relayed(j, history, new)
    there = (history > 0) | (j.t[c] > 0)[others(j)]
    late = _by_attend(new + history * (j.ahead == 0), there.cumsum(1) - there, j.N)
    return np.asarray(asks * (_most_alive(late, j.stream_slots) + history.sum(1) * j.ahead))


def _missing_runs(j: Job, c: int, r: Array) -> Array:
    """[N, N-1] pages of the history of maker n - s that node n has no copy of; each run of equal r has its own."""
    cuts = np.flatnonzero(np.diff(r[:c], prepend=-1)) if c else np.empty(0, dtype=np.int64)
    ends = np.append(cuts[1:], c)
    by_factor = np.zeros((j.N, j.N + 1), dtype=np.int64)
    for lo, hi in zip(cuts.tolist(), ends.tolist(), strict=True) if c else ():
        by_factor[:, r[lo]] += j.pages(j.T[hi] - j.T[lo])
    upto = by_factor.cumsum(1)
    out: Array = upto[others(j), _ranks(j)]
    return out


def _ranks(j: Job) -> Array:
    """[N, N-1] which copy of each other maker's blocks a node gets: it holds those with more copies than that."""
    out: Array = np.take_along_axis(j.ranks.T, others(j), 1)
    return out
