"""Closed form of `mars`: what its decisions move, to the byte; its memory is a bound."""

from functools import cached_property
from heapq import nlargest

import numpy as np

from mcf.mars.form import Form, kv_bytes, own_bytes, traffic_of
from mcf.mars.job import Array, Job
from mcf.mars.nested import Levels, NestedChunk, comes_in_turn, nest


def mars(j: Job) -> Form:
    """Nested residency with a group size per chunk; each node of a group asks the others that hold what it may see."""
    levels, decided = Levels(j.N), nest(j)
    size, count = kv_bytes(j), _Count(j)
    peak = np.zeros(j.N, dtype=np.int64)
    own = own_bytes(j)
    for chunk in decided:
        for level in range(levels.sizes.index(chunk.g), len(levels.makers)):
            for lo, hi in levels.missing(chunk.resident[level], chunk.chunk):
                count.kv(levels, level, (j.T[hi] - j.T[lo]) * size, chunk.chunk, is_new=False)
            count.kv(levels, level, j.t[chunk.chunk] * size, chunk.chunk, is_new=True)
        if chunk.g > 1:
            count.routed(chunk)
        peak = np.maximum(peak, own[chunk.chunk] + _held(j, levels, chunk) * j.page_bytes)
    return Form(
        policy="mars",
        job=j,
        traffic=traffic_of(count.new, count.old, count.query, count.state),
        peak_bytes=peak,
        into=count.into,
        out_of=count.out,
        fetched=count.fetched,
        groups=np.array([chunk.g for chunk in decided]),
    )


class _Count:
    """Bytes as they add up. Arrays are by rank inside, by node in `into` and `out`."""

    def __init__(self, j: Job) -> None:
        self.j, self.walk = j, j.walk
        self.new = self.old = self.query = self.state = 0
        self.into, self.out = np.zeros(j.N, dtype=np.int64), np.zeros(j.N, dtype=np.int64)
        self.fetched = np.zeros(j.C)

    def kv(self, levels: Levels, level: int, sent: Array, chunk: int, *, is_new: bool) -> None:
        """`sent` [N] bytes of each maker go to the ranks at which it has this level."""
        j, step, skip = self.j, levels.sizes[level], levels.sizes[level + 1]
        ranks, sent = np.arange(j.N), sent[self.walk]
        inner = np.bincount(ranks % step, weights=sent, minlength=step)[ranks % step]
        outer = np.bincount(ranks % skip, weights=sent, minlength=skip)[ranks % skip]
        into = (inner - outer).astype(np.int64)
        total = int(into.sum()) if not j.has_relays else self._ways(sent, step, skip)
        self.into[self.walk] += into
        self.out[self.walk] += sent
        if is_new:
            self.new += total
        else:
            self.old += total
            self.fetched[chunk] += float(into.max())

    def _ways(self, sent: Array, step: int, skip: int) -> int:
        """Where nodes relay each copy has a way of its own."""
        ranks = np.arange(self.j.N)
        apart = ranks[:, None] - ranks[None, :]
        pairs = (apart % step == 0) & (apart % skip != 0)
        return int((sent[:, None] * self._hops * pairs).sum())

    @cached_property
    def _hops(self) -> Array:
        """[N, N] links from one rank to another."""
        out: Array = self.j.hops[np.ix_(self.walk, self.walk)]
        return out

    def routed(self, decided: NestedChunk) -> None:
        """Queries inside the groups, and one state back for each."""
        j, g, c = self.j, decided.g, decided.chunk
        if j.T[c].min() > 0 and not j.has_relays:
            self._all_ask(g, j.t[c][self.walk])
            return
        asks, tokens = _asks(j, c, g), j.t[c][self.walk]
        sent = asks * tokens[:, None]
        query, state = j.query_bytes * j.L, j.state_bytes * j.L
        edges = asks.sum(1) if not j.has_relays else np.array([_edges(j, q, asks[q]) for q in range(j.N)])
        self.query += int((edges * tokens).sum()) * query
        self.state += int((sent.T * self._hops).sum()) * state
        self.into[self.walk] += sent.sum(0) * query + sent.sum(1) * state
        self.out[self.walk] += asks.any(1) * tokens * query + sent.sum(0) * state

    def _all_ask(self, g: int, tokens: Array) -> None:
        """Everybody with tokens asks the whole group."""
        j = self.j
        query, state = j.query_bytes * j.L, j.state_bytes * j.L
        asked, own = np.repeat(tokens.reshape(-1, g).sum(1), g) - tokens, (g - 1) * tokens
        self.query += int(own.sum()) * query
        self.state += int(own.sum()) * state
        self.into[self.walk] += asked * query + own * state
        self.out[self.walk] += tokens * query + asked * state


def _edges(j: Job, q: int, asked: Array) -> int:
    """Links of the tree from rank q to the ranks that it asks."""
    return len(j.topology.multicast(int(j.walk[q]), j.walk[asked].tolist())) if asked.any() else 0


def _asks(j: Job, c: int, g: int) -> Array:
    """[N, N] whether queries of a rank go to another of its group: its class holds something that they may see."""
    ranks, tokens = np.arange(j.N), j.t[c][j.walk]
    near = (ranks[:, None] // g == ranks[None, :] // g) & ~np.eye(j.N, dtype=bool) & (tokens > 0)[:, None]
    if j.T[c].min() > 0:
        return np.asarray(near)
    held = np.bincount(ranks % g, weights=j.T[c][j.walk], minlength=g)[ranks % g] > 0
    fresh = j.sees(c)[np.ix_(j.walk, j.walk)] & (tokens > 0)[None, :]
    seen = np.stack([np.asarray(fresh[:, r::g]).any(1) for r in range(g)], 1)[:, ranks % g]
    out: Array = near & (held[None, :] | seen)
    return out


def _held(j: Job, levels: Levels, decided: NestedChunk) -> int:
    """Pages of copies and streams of a rank in a chunk's loop, at most."""
    k, c, total = levels.sizes.index(decided.g), decided.chunk, 0
    block, late = j.pages(j.t).max(1), list[int]()
    for level, count in enumerate(levels.makers):
        total += count * int(sum(block[lo:hi].sum() for lo, hi in decided.resident[level])) * j.L
        total += count * int(block[c]) * j.L * decided.keeps_new[level]
        if level >= k:
            missing = levels.missing(decided.resident[level], c)
            history = sum(int(j.pages(j.T[hi] - j.T[lo]).max()) for lo, hi in missing) * (j.ahead + 1)
            total += count * history * j.ahead
            late += [int(block[c]) * (not decided.keeps_new[level]) + history * (1 - j.ahead)] * count
    in_turn = k == 0 and comes_in_turn(j, c)
    return total + sum(nlargest(j.stream_slots, late) if in_turn else late)
