"""V7: what each merge's inputs attend, as rectangles of blocks; disjoint rectangles of the right total weight cover
exactly once.
"""

from collections.abc import Iterator

import numpy as np

from mcf.errors import LawError
from mcf.schedule.laws import above
from mcf.schedule.passes import gather_after
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import ALL, ATTEND, DECODE, MERGE, RECV
from mcf.schedule.text import grid


def check_coverage(sched: Schedule) -> None:
    """Raise LawError("V7") unless every query attends each token that it may see exactly once, for every KV head."""
    final = _final_merges(sched)
    _check_complete(sched, final)
    cover = _Cover(sched)
    for row in final:
        problem = cover.problem(row)
        if problem:
            raise LawError("V7", problem, row=row, grid=above("V7", grid(sched, mark=row)))


def _final_merges(sched: Schedule) -> list[int]:
    s = sched.steps
    mine = (s["kind"] == MERGE) & ((s["q"] == s["node"]) | (s["q"] == ALL))
    return np.flatnonzero(mine).tolist()


def _check_complete(sched: Schedule, final: list[int]) -> None:
    s, meta = sched.steps, sched.meta
    count = np.zeros((meta.num_chunks + 1, meta.num_nodes), dtype=np.int64)
    rows = np.array(final, dtype=np.int64)
    np.add.at(count, (s["chunk"][rows], s["node"][rows]), 1)
    expected = np.zeros_like(count)
    expected[:-1] = sched.tokens > 0
    expected[-1] = (s["stage"] == DECODE).any()
    if (count != expected).any():
        chunk, node = np.argwhere(count != expected)[0].tolist()
        near = np.flatnonzero((s["node"] == node) & (s["chunk"] <= chunk))
        row = int(near[-1]) if len(near) else None
        times = f"{count[chunk, node]} times: expected {expected[chunk, node]}"
        text = f"node {node} merges its queries of chunk {chunk} {times}"
        raise LawError("V7", text, row=row, grid=above("V7", grid(sched, mark=row)) if row is not None else "")


class _Cover:
    def __init__(self, sched: Schedule) -> None:
        self.sched = sched
        segment, target = gather_after(sched)
        self.inputs_of = target.tolist()
        self.bounds = np.searchsorted(segment, np.arange(len(sched.steps) + 1)).tolist()
        self.kind, self.ref = sched.steps["kind"].tolist(), sched.steps["ref"].tolist()
        self.prefix = np.asarray(sched._prefix, dtype=np.int64)
        meta = sched.meta
        self.first = np.full((meta.num_chunks, meta.num_nodes), np.iinfo(np.int32).max, dtype=np.int64)
        self.last = np.full((meta.num_chunks, meta.num_nodes), -1, dtype=np.int64)
        p = sched.pieces
        np.minimum.at(self.first, (p["chunk"], p["node"]), p["lo"])
        np.maximum.at(self.last, (p["chunk"], p["node"]), p["hi"] - 1)

    def problem(self, row: int) -> str | None:
        """One line on what the merge's inputs miss or see twice; None when they are right."""
        s = self.sched.steps
        rows = np.array(list(self._attends(row)), dtype=np.int64)
        if not len(rows):
            return "the merge has no attend behind it"
        step = s[row]
        sets = s[rows]
        if (sets["q"] != step["q"]).any() or (sets["chunk"] != step["chunk"]).any():
            return "the merge takes in states of another query"
        chunk = int(step["chunk"])
        if not _disjoint(sets):
            return f"queries of node {step['q']} in chunk {chunk} attend some block twice"
        history = self._weight(sets, min(chunk, self.sched.meta.num_chunks))
        whole = int(self.prefix[min(chunk, self.sched.meta.num_chunks), -1]) * self.sched.meta.num_kv_heads
        if history != whole:
            who = f"queries of node {step['q']} in chunk {chunk}"
            return f"{who} attend {history} token-heads of history: expected {whole}"
        return self._own_chunk(sets, int(step["q"]), chunk)

    def _attends(self, row: int) -> Iterator[int]:
        for target in self.inputs_of[self.bounds[row] : self.bounds[row + 1]]:
            kind = self.kind[target]
            if kind == ATTEND:
                yield target
            elif kind == MERGE:
                yield from self._attends(target)
            elif kind == RECV:
                yield from self._attends(self.ref[target])

    def _weight(self, sets: Array, chunk: int) -> int:
        """Token-heads of the sets in chunks before `chunk`."""
        p = self.prefix
        lo, hi = np.minimum(sets["c_lo"], chunk), np.minimum(sets["c_hi"], chunk)
        tokens = p[hi, sets["m_hi"]] - p[lo, sets["m_hi"]] - p[hi, sets["m_lo"]] + p[lo, sets["m_lo"]]
        return int((tokens * (sets["h_hi"] - sets["h_lo"])).sum())

    def _own_chunk(self, sets: Array, q: int, chunk: int) -> str | None:
        meta = self.sched.meta
        count = np.zeros((meta.num_nodes, meta.num_kv_heads), dtype=np.int64)
        for r in sets[(sets["c_lo"] <= chunk) & (sets["c_hi"] > chunk)]:
            count[r["m_lo"] : r["m_hi"], r["h_lo"] : r["h_hi"]] += 1
        if chunk < meta.num_chunks:
            visible = self.first[chunk] <= self.last[chunk, q]
            if (count[self.last[chunk] >= 0] > 1).any():
                return f"queries of node {q} in chunk {chunk} attend a new block twice"
        else:
            visible = np.ones(meta.num_nodes, dtype=bool)
        if (count[visible] != 1).any():
            maker = int(np.flatnonzero(visible)[(count[visible] != 1).any(1).argmax()])
            times = count[maker].tolist()
            return f"queries of node {q} in chunk {chunk} attend node {maker}'s new block {times} times per head"
        return None


def _disjoint(sets: Array) -> bool:
    """Say whether block rectangles are pairwise disjoint."""
    for axis in "mc":
        order = np.argsort(sets[f"{axis}_lo"], kind="stable")
        lo, hi = sets[f"{axis}_lo"][order], sets[f"{axis}_hi"][order]
        if (hi[:-1] <= lo[1:]).all():
            return True
    hit = np.ones((len(sets), len(sets)), dtype=bool)
    for axis in "cmh":
        lo, hi = sets[f"{axis}_lo"], sets[f"{axis}_hi"]
        hit &= (lo[:, None] < hi[None, :]) & (lo[None, :] < hi[:, None])
    return int(hit.sum()) == len(sets)
