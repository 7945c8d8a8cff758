"""MARS+: nested residency and a group size for each chunk. Decisions for nodes that are all alike, to the page.

Groups of g ranks in a row share one copy of the history: rank n holds or fetches the blocks of makers o with
o = n (mod g), its *class*, and attends them for its whole group. Sizes divide one another, so classes nest: what a rank
is responsible for at 2g it is at g too. The *level* of a maker at a rank is the largest size at which it is in its
class. Residency does not depend on g: blocks of the highest level stay longest, of one level the oldest.

Decisions need only what is resident now, so planning again is the same code. The source is section 5 of the design
notes.

Convergence starts before the last chunk: a copy that no later chunk reads, since its groups are larger or there is no
later chunk, retires at once or is never made. With `drain_chunks` the others retire bit by bit in the last chunks, and
are streamed again where they are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import nlargest
from itertools import pairwise

import numpy as np

from mcf.mars.chunk import PAGE_TOKENS
from mcf.mars.converge import still_held
from mcf.mars.groups import sizes
from mcf.mars.job import Job
from mcf.mars.solve import NEAR
from mcf.mars.times import Rates, T_linear

Run = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class NestedChunk:
    """What is decided for one chunk (from 0): groups of g.

    Per level, lowest first: `resident` chunk ranges in memory during its loop, `keeps_new` whether the chunk's own
    blocks stay, `dropped` ranges that drain before it. A level counts where it is at least that of g.
    """

    chunk: int
    g: int
    resident: tuple[tuple[Run, ...], ...]
    keeps_new: tuple[bool, ...]
    dropped: tuple[tuple[Run, ...], ...] = ()


class Levels:
    """The sizes g, and how many other makers each rank has at each level."""

    def __init__(self, N: int) -> None:
        self.N, self.sizes = N, sizes(N)
        inside = [N // g for g in self.sizes]
        self.makers = [a - b for a, b in pairwise(inside)]  # the last level is the rank itself

    def of(self, node: int, maker: int) -> int:
        """The level of a maker at a rank."""
        return max(k for k, g in enumerate(self.sizes) if (node - maker) % g == 0)

    def missing(self, resident: Sequence[Run], chunk: int) -> list[Run]:
        """What of the history is not among some ranges."""
        at, out = 0, []
        for lo, hi in [*resident, (chunk, chunk)]:
            if at < lo:
                out.append((at, lo))
            at = hi
        return out


def nest(j: Job) -> list[NestedChunk]:
    """Decide all chunks: the fewest bytes among the group sizes near the least time; without rates the fewest bytes."""
    levels = Levels(j.N)
    state = _State(j, levels)
    return _useful([state.decide(chunk, j.rates) for chunk in range(j.C)], levels)


def comes_in_turn(j: Job, chunk: int) -> bool:
    """Say whether every node takes what it streams one after the other.

    Not where some relay, and not where queries of a node do not see every block: what nobody waits for comes at once.
    """
    return not j.has_relays and int(j.t[chunk].min()) > 1


def _useful(decided: list[NestedChunk], levels: Levels) -> list[NestedChunk]:
    """The same decisions, without copies that no chunk from there on reads: those of levels below its groups'."""
    every = range(len(levels.makers))
    last = [max((d.chunk for d in decided if levels.sizes.index(d.g) <= level), default=-1) for level in every]
    held: list[tuple[Run, ...]] = [()] * len(levels.makers)
    out = []
    for d in decided:
        resident = tuple(runs if d.chunk <= last[level] else () for level, runs in enumerate(d.resident))
        keeps = tuple(keeps and d.chunk < last[level] for level, keeps in enumerate(d.keeps_new))
        dropped = tuple(_without(old, new) for old, new in zip(held, resident, strict=True))
        out.append(replace(d, resident=resident, dropped=dropped, keeps_new=keeps))
        held = [_joined(runs, d.chunk) if new else runs for runs, new in zip(resident, keeps, strict=True)]
    return out


def _joined(runs: tuple[Run, ...], chunk: int) -> tuple[Run, ...]:
    """Ranges with one more chunk behind them."""
    if runs and runs[-1][1] == chunk:
        return (*runs[:-1], (runs[-1][0], chunk + 1))
    return (*runs, (chunk, chunk + 1))


@dataclass
class _State:
    """What every rank holds, as ranges of chunks per level; pages are those of the fullest."""

    j: Job
    levels: Levels
    kept: list[list[Run]] = field(init=False)

    def __post_init__(self) -> None:
        self.kept = [[] for _ in self.levels.makers]
        j = self.j
        self.budget = None if j.S_node is None else j.S_node
        self.own = (j.pages(j.T[1:]) + j.reserve_pages(j.T[-1])).max(1) * j.L
        block = j.pages(j.t).max(1) * j.L  # pages of a copy of one maker's block, all layers
        self.block: list[int] = block.tolist()
        self.blocks_before: list[int] = [0, *block.cumsum().tolist()]
        self.tokens_before: list[float] = j.T.mean(1).tolist()
        self.known: dict[Run, int] = {}
        self.most = 0  # pages of copies when they began to retire

    def decide(self, chunk: int, rates: Rates | None) -> NestedChunk:
        """Choose g, drop what has no room, keep what has."""
        if chunk == self.j.C - self.j.drain_chunks:
            self.most = self.held()
        k = self._choose(chunk, rates)
        self._drop(chunk, k)
        resident = tuple(tuple(runs) for runs in self.kept)
        news = tuple(self._keep(chunk, k, level) for level in reversed(range(len(self.kept))))[::-1]
        return NestedChunk(chunk=chunk, g=self.levels.sizes[k], resident=resident, keeps_new=news)

    # --- memory, in pages of one layer ---

    def room(self, chunk: int) -> int:
        """Pages beside a rank's own and the reserve."""
        return 2**60 if self.budget is None else int(self.budget // self.j.page_bytes - self.own[chunk])

    def cap(self, chunk: int) -> int:
        """Pages of copies that convergence leaves in a chunk."""
        j = self.j
        if chunk < j.C - j.drain_chunks:
            return 2**60
        return int(self.most * still_held(c=chunk + 1, C=j.C, W=j.drain_chunks))

    def over(self, chunk: int, k: int) -> int:
        """Pages of copies that must go before a chunk with groups of the k-th size."""
        held = self.held()
        return max(0, held - self.cap(chunk), held + self.slots(chunk, k, self.kept) - self.room(chunk))

    def held(self) -> int:
        """Pages of all copies."""
        return sum(self._held(level) for level in range(len(self.kept)))

    def _held(self, level: int) -> int:
        before = self.blocks_before
        return self.levels.makers[level] * sum(before[hi] - before[lo] for lo, hi in self.kept[level])

    def slots(self, chunk: int, k: int, kept: Sequence[Sequence[Run]], news: Sequence[bool] = ()) -> int:
        """Pages of streams at most: history of the class that is not held, a layer ahead, and new blocks."""
        j, total, late = self.j, 0, []
        in_turn = k == 0 and comes_in_turn(j, chunk)
        for level in range(k, len(self.levels.makers)):
            count = self.levels.makers[level]
            missing = self.levels.missing(kept[level], chunk)
            history = sum(self._pages(run) for run in missing) * (j.ahead + 1)
            new = 0 if news and news[level] else self.block[chunk] // j.L
            total += count * history * j.ahead
            late += [new + history * (1 - j.ahead)] * (min(count, j.stream_slots) if in_turn else count)
        return total + sum(nlargest(j.stream_slots, late) if in_turn else late)

    def _pages(self, run: Run) -> int:
        if run not in self.known:
            self.known[run] = int(self.j.pages(self.j.T[run[1]] - self.j.T[run[0]]).max())
        return self.known[run]

    def _drop(self, chunk: int, k: int) -> None:
        """Drop copies, lowest level and youngest first, until the rest and the slots fit."""
        for runs in self.kept:
            while runs and self.over(chunk, k):
                lo, hi = runs.pop()
                if hi - 1 > lo:
                    runs.append((lo, hi - 1))
            if runs:
                break

    def _keep(self, chunk: int, k: int, level: int) -> bool:
        """Keep a level's new blocks if they are delivered and there is room beside all slots."""
        size = self.levels.makers[level] * self.block[chunk]
        if level < k or self.held() + self.slots(chunk, k, self.kept) + size > self.room(chunk):
            return False
        if chunk + 1 > self.j.C - self.j.drain_chunks and self.held() + size > self.cap(chunk + 1):
            return False
        runs = self.kept[level]
        if runs and runs[-1][1] == chunk:
            runs[-1] = (runs[-1][0], chunk + 1)
        else:
            runs.append((chunk, chunk + 1))
        return True

    # --- choice ---

    def _choose(self, chunk: int, rates: Rates | None) -> int:
        none: list[list[Run]] = [[] for _ in self.kept]
        every = range(len(self.levels.sizes))
        fits = [k for k in every if self.slots(chunk, k, none) <= self.room(chunk)]
        if not fits:
            return every[-1]  # nothing but its own: what is missing is the budget check's to say
        moved = {k: self._bytes_in(chunk, k) for k in fits}
        if rates is None:
            return min(fits, key=lambda k: (sum(moved[k]), k))
        times = {k: self._seconds(chunk, k, *moved[k], rates) for k in fits}
        near = [k for k in fits if times[k] <= min(times.values()) * NEAR]
        return min(near, key=lambda k: (sum(moved[k]), times[k]))

    def _bytes_in(self, chunk: int, k: int) -> tuple[float, float]:
        """(history, new and routed) bytes into a rank, all layers, once the copies that do not fit have gone."""
        j, g = self.j, self.levels.sizes[k]
        over = self.over(chunk, k)
        tokens = 0.0
        before = self.tokens_before
        for level, (count, runs) in enumerate(zip(self.levels.makers, self.kept, strict=True)):
            gone = min(self._held(level), over)
            over -= gone
            if level >= k:
                missing = self.levels.missing(runs, chunk)
                tokens += count * sum(before[hi] - before[lo] for lo, hi in missing) + gone / j.L * PAGE_TOKENS
        t = float(j.t[chunk].mean())
        new = (j.N / g - 1) * t * j.shape.kv_token_bytes
        routed = (g - 1) * t * (j.query_bytes + j.state_bytes) * j.L
        return tokens * j.shape.kv_token_bytes, new + routed

    def _seconds(self, chunk: int, k: int, old: float, fresh: float, rates: Rates) -> float:
        """Section 3 of the design notes: the layers, or all that comes in."""
        j, g = self.j, self.levels.sizes[k]
        t, h, B = float(j.t[chunk].max()), float(j.T[chunk].sum()), float(j.t[chunk].sum())
        link = max(1, j.degree) * rates.BW
        flops = 4.0 * j.shape.num_q_heads * j.shape.head_dim * t * (h + B / 2)
        attention = max(flops / rates.attention, (h + B) / g * j.shape.kv_token_layer_bytes / rates.BW_mem)
        tail = 2 * rates.tau + t * j.state_bytes / link if g > 1 else rates.tau
        dense = T_linear(j.shape, n=t, rates=rates) / j.L
        layer = dense + max(attention + j.N * rates.overhead, fresh / j.L / link) + tail
        return float(np.maximum(j.L * layer, (old + fresh) / link))


def _without(old: Sequence[Run], new: Sequence[Run]) -> tuple[Run, ...]:
    """The part of ranges that is not among others, which are within them."""
    out = []
    for lo, hi in old:
        at = lo
        for a, b in new:
            if lo <= a < hi:
                if at < a:
                    out.append((at, a))
                at = b
        if at < hi:
            out.append((at, hi))
    return tuple(out)
