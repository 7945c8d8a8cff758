"""A schedule unrolled for the clock: lanes, what each row waits for, and memory in list order. Facts only.

An *instance* is one run of one row, the integer `row * T + tick`, where tick is the layer that it works for or moves
(semantics 2: iteration i of the loop runs a row with `ahead` = a for layer i + a). T is the number of simulated layers.
Rows outside the loop (drain, free) have the instance of tick 0.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np

from mcf.schedule.deadlock import last_uses, use_pairs
from mcf.schedule.passes import gather_after, group_keys, intersects, is_retire
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import (
    ATTEND,
    COMPUTE,
    DECODE,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    NIC,
    PREFILL,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STREAM,
)

Pairs = tuple[Array, Array]
Condition = tuple[tuple[int, ...], tuple[tuple[int, int], ...], tuple[int, ...], int]


# Memory of a row, taken by an instance (True) or given back once some instances, and all runs of some rows, have ended
MemoryEvent = tuple[int, int, bool, tuple[int, ...], tuple[int, ...]]


class Program:
    """Everything about a schedule's prefill that does not change while it runs; `num_ticks` layers are simulated.

    `conditions[row]`: None, or what an instance waits for. First instances of rows whose run for the same tick must
    have ended; (instance, by how many ticks the run is shifted); rows all of whose runs must have ended; 0 no memory, 1
    at first, 2 at each tick.
    """

    def __init__(self, sched: Schedule, num_ticks: int) -> None:
        self.sched, self.num_ticks = sched, num_ticks
        s = sched.steps
        self.kind: list[int] = s["kind"].tolist()
        self.node: list[int] = s["node"].tolist()
        self.ahead: list[int] = s["ahead"].tolist()
        self.dst: list[int] = s["dst"].tolist()
        self.route: list[int] = s["route"].tolist()
        self.keys = group_keys(s, sched.meta.num_chunks)
        self.lane_of: list[int] = s["lane"].tolist()
        self.is_retire: list[bool] = is_retire(s).tolist()
        self.num_runs: list[int] = np.where(is_retire(s), 1, num_ticks).tolist()
        streams = (s["kind"] == RECV) & (s["payload"] == KV) & (s["hold"] == STREAM)
        self._streams: list[bool] = streams.tolist()
        pairs = use_pairs(sched)
        self.last_use: list[int] = last_uses(sched, pairs).tolist()
        self.users = _grouped(pairs[0], pairs[1])
        self.released_by = _grouped(*_released(self.last_use))
        self._same = _grouped(
            *_join([(pairs[1], pairs[0]), *self._own_waits(), self._query_waits(), self._old_copies()])
        )
        self.shifted: dict[int, list[tuple[int, int]]] = {}
        self.runs: dict[int, list[int]] = _grouped(*self._retire_waits())
        self.gate = [0] * len(s)
        self._add_after()
        self._add_layer_order()
        self._add_slots()
        self.conditions = [self._condition(row) for row in range(len(s))]

    def _condition(self, row: int) -> Condition | None:
        ticks = self.num_ticks
        same = tuple(other * ticks for other in self._same.get(row, ()))
        shifted = tuple((other * ticks + shift, shift) for other, shift in self.shifted.get(row, ()))
        found = same, shifted, tuple(self.runs.get(row, ())), self.gate[row]
        return found if any(found) else None

    # --- lanes and memory ---

    def lane(self, node: int, lane: int) -> list[int]:
        """Instances that one lane of a node starts, in order."""
        rows_lane = self.lane_of
        out: list[int] = []
        for retired, loop in self._groups(node):
            out += [row * self.num_ticks for row in retired if rows_lane[row] == lane]
            mine = [row for row in loop if rows_lane[row] == lane]
            out += [row * self.num_ticks + tick for row, tick in self._unroll(mine)]
        return out

    def memory(self, node: int) -> list[MemoryEvent]:
        """Memory events of a node in list order, across lanes (semantics 4)."""
        ticks, gate = self.num_ticks, self.gate
        out: list[MemoryEvent] = []
        released = self.released_by
        for retired, loop in self._groups(node):
            for row in retired:
                if self.kind[row] == FREE:
                    inst = row * self.num_ticks
                    out.append((row, inst, False, (inst,), ()))
            mine = [row for row in loop if gate[row] or row in released]
            for row, tick in self._unroll(mine):
                if gate[row] == 2 or (gate[row] and not tick):
                    out.append((row, row * ticks + tick, True, (), ()))
                for recv in released.get(row, ()):
                    needs = tuple([r * ticks + tick for r in (recv, *self.users[recv])])
                    out.append((recv, needs[0], False, needs, ()))
            for row in loop:
                if self.is_loop_slot(row):
                    out.append((row, row * ticks, False, (), (row, *self.users.get(row, ()))))
        return out

    def is_loop_slot(self, row: int) -> bool:
        """Say whether a row is a stream receive whose slots are held for the whole loop."""
        return self._streams[row] and self.last_use[row] < 0

    def _groups(self, node: int) -> Iterator[tuple[list[int], list[int]]]:
        """Rows of each (chunk, stage) of a node's prefill: those outside the loop and those inside."""
        lo, hi = self.sched.node_bounds[node : node + 2].tolist()
        stages = self.sched.steps["stage"][lo:hi]
        rows = (lo + np.flatnonzero(stages != DECODE)).tolist()
        for _, group in groupby(rows, key=self.keys.__getitem__):
            mine = list(group)
            retired = [row for row in mine if self.is_retire[row]]
            yield retired, [row for row in mine if not self.is_retire[row]]

    def _unroll(self, rows: list[int]) -> list[tuple[int, int]]:
        """(row, tick) of a layer loop in order, the prologue first."""
        ticks, out = self.num_ticks, list[tuple[int, int]]()
        aheads = [(row, self.ahead[row]) for row in rows]
        for it in range(-max((a for _, a in aheads), default=0), ticks):
            out += [(row, it + ahead) for row, ahead in aheads if 0 <= it + ahead < ticks]
        return out

    # --- what rows wait for ---

    def _produce_at(self) -> Array:
        """[C, N] the produce row of each chunk and node; -1 where there is none."""
        s = self.sched.steps
        out = np.full((self.sched.meta.num_chunks, self.sched.meta.num_nodes), -1, dtype=np.int64)
        rows = np.flatnonzero((s["kind"] == PRODUCE) & (s["stage"] == PREFILL))
        out[s["chunk"][rows], s["node"][rows]] = rows
        return out

    def _own_waits(self) -> list[Pairs]:
        """Own queries and own blocks leave when dense work has made them; the lane of sends may run ahead of it."""
        s, at = self.sched.steps, self._produce_at()
        latest = np.maximum.accumulate(at, axis=0)  # the last produce of a node up to each chunk
        sends = np.flatnonzero((s["kind"] == SEND) & (s["stage"] != DECODE))
        own = (s["payload"][sends] == QUERY) & (s["q"][sends] == s["node"][sends])
        queries = sends[own]
        kv = sends[(s["payload"][sends] == KV) & (s["m_lo"][sends] <= s["node"][sends])]
        kv = kv[(s["node"][kv] < s["m_hi"][kv]) & (s["c_hi"][kv] > 0)]
        parts = [(queries, at[s["chunk"][queries], s["node"][queries]]), (kv, latest[s["c_hi"][kv] - 1, s["node"][kv]])]
        return [(rows[made >= 0], made[made >= 0]) for rows, made in parts]

    def _query_waits(self) -> Pairs:
        """Attends and forwards of other nodes' queries wait for the receives of their heads."""
        s = self.sched.steps
        recvs = np.flatnonzero((s["kind"] == RECV) & (s["payload"] == QUERY) & (s["stage"] != DECODE))
        by_query = _grouped(self.keys[recvs] * self.sched.meta.num_nodes + s["q"][recvs], recvs)
        users = np.flatnonzero(
            ((s["kind"] == ATTEND) | ((s["kind"] == SEND) & (s["payload"] == QUERY))) & (s["q"] >= 0)
        )
        users = users[s["q"][users] != s["node"][users]]
        keys = (self.keys[users] * self.sched.meta.num_nodes + s["q"][users]).tolist()
        hits = [(u, r) for u, key in zip(users.tolist(), keys, strict=True) for r in by_query.get(key, ())]
        both = np.array(hits, dtype=np.int64).reshape(-1, 2)
        left, right = s[both[:, 0]], s[both[:, 1]]
        same = (left["h_lo"] < right["h_hi"]) & (right["h_lo"] < left["h_hi"])
        return both[same, 0], both[same, 1]

    def _old_copies(self) -> Pairs:
        """Users of kept copies that came in an earlier chunk, where no row before on the same lane waited for them."""
        s = self.sched.steps
        keeps = (s["kind"] == RECV) & (s["hold"] == KEEP)
        reads = ((s["kind"] == ATTEND) | ((s["kind"] == SEND) & (s["payload"] == KV))) & (s["stage"] != DECODE)
        parts = []
        for lane, kind in ((COMPUTE, ATTEND), (NIC, SEND)):
            settled = [r for r, users in self.users.items() if any(self.kind[u] == kind for u in users)]
            open_ = keeps.copy()
            open_[settled] = False
            parts += [self._crossing(open_, reads & (s["lane"] == lane), node) for node in self._nodes()]
        return _join(parts)

    def _crossing(self, firsts: Array, seconds: Array, node: int) -> Pairs:
        """(second, first) of one node: rows of a later group that touch the set of a row of an earlier one."""
        lo, hi = self.sched.node_bounds[node : node + 2].tolist()
        a, b = lo + np.flatnonzero(firsts[lo:hi]), lo + np.flatnonzero(seconds[lo:hi])
        if not len(a) or not len(b):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        s = self.sched.steps
        later = self.keys[a][:, None] < self.keys[b][None, :]
        i, j = np.nonzero(later & intersects(s[a][:, None], s[b][None, :]))
        return b[j], a[i]

    def _retire_waits(self) -> Pairs:
        """A drain waits for the arrival of its blocks, a free for sends of them; the compute lane orders the rest."""
        s = self.sched.steps
        holds, sends = (s["kind"] == RECV) & (s["hold"] == KEEP), (s["kind"] == SEND) & (s["payload"] == KV)
        rules = ((holds, s["kind"] == DRAIN), (sends, s["kind"] == FREE))
        return _join([self._crossing(first, second, node) for first, second in rules for node in self._nodes()])

    def _nodes(self) -> range:
        return range(self.sched.meta.num_nodes)

    def _add_after(self) -> None:
        segment, target = gather_after(self.sched)
        retire = is_retire(self.sched.steps)
        same = (self.keys[segment] == self.keys[target]) & ~retire[segment] & ~retire[target]
        for row, other, near in zip(segment.tolist(), target.tolist(), same.tolist(), strict=True):
            shift = self.ahead[other] - self.ahead[row]
            if not near:
                self.runs.setdefault(row, []).append(other)
            elif shift:
                self.shifted.setdefault(row, []).append((other, shift))
            else:
                self._same.setdefault(row, []).append(other)

    def _add_layer_order(self) -> None:
        """The dense work of a layer needs the attention output of the layer before."""
        s, at = self.sched.steps, self._produce_at()
        rows = np.flatnonzero((s["kind"] == MERGE) & (s["stage"] == PREFILL) & (s["q"] == s["node"]))
        for row, produce in zip(rows.tolist(), at[s["chunk"][rows], s["node"][rows]].tolist(), strict=True):
            if produce >= 0:
                self.shifted[produce] = [(row, -1)]

    def _add_slots(self) -> None:
        """Memory gates, and slots of loop-long streams: layer l + a is posted when layer l - 1 has been used."""
        s = self.sched.steps
        for row in np.flatnonzero((s["kind"] == PRODUCE) & (s["stage"] == PREFILL)).tolist():
            self.gate[row] = 1
        for row in np.flatnonzero((s["kind"] == RECV) & (s["payload"] == KV)).tolist():
            loop = self.is_loop_slot(row)
            self.gate[row] = 1 if loop or s["hold"][row] == KEEP else 2
            if loop:
                back = -(self.ahead[row] + 1)
                self.shifted[row] = [(other, back) for other in (row, *self.users.get(row, ()))]


def _released(last_use: list[int]) -> Pairs:
    last = np.array(last_use, dtype=np.int64)
    rows = np.flatnonzero(last >= 0)
    return last[rows], rows


def _join(parts: Iterable[Pairs]) -> Pairs:
    both = list(parts)
    return np.concatenate([a for a, _ in both]), np.concatenate([b for _, b in both])


def _grouped(keys: Array, values: Array) -> dict[int, list[int]]:
    """Values by key, each list rising."""
    out: dict[int, list[int]] = {}
    order = np.lexsort((values, keys))
    for key, value in zip(keys[order].tolist(), values[order].tolist(), strict=True):
        out.setdefault(key, []).append(value)
    return out
