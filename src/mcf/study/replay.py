"""A trace and its schedule -> what a page replays: states of blocks, memory, links and lanes over time. Plain JSON.

Works for simulated and for real traces alike: states follow from rows and from the events that name them. What a trace
does not time (a real run's drains and frees) happens where the semantics put it: before the chunk's loop.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mcf.schedule import UNLIMITED, Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import CONVERGE, DECODE, DRAIN, FREE, KEEP, KIND_NAMES, KV, LANE_NAMES, PREFILL, PRODUCE, SEND
from mcf.trace import Trace
from mcf.trace.columns import Table

STATES = ("free", "arriving", "valid", "draining", "owner", "streamed")
FREED, ARRIVING, VALID, DRAINING, OWNER, STREAMED = range(len(STATES))
BINS = 400  # of time, for the load of links
MAX_SPANS = 60_000  # of lanes in a page: neighbours of one kind are joined until there are fewer
MAX_SAMPLES = 1_000  # of memory per node
Change = tuple[float, int, int, int]  # seconds, node, block, state


def replay(trace: Trace, sched: Schedule) -> dict[str, Any]:
    """Everything the page needs; times in seconds from the first event."""
    kept = trace.events[trace.events["stage"] != DECODE]
    zero = float(min(kept["t_start"].min(), *trace.memory["t"][:1])) if len(kept) else 0.0
    end = float(kept["t_end"].max()) - zero if len(kept) else 0.0
    blocks = _blocks(sched)
    return {
        "title": f"{sched.meta.policy}, {sched.meta.num_nodes} nodes, {sched.meta.prompt_tokens:,} prompt tokens",
        "clock": "model time" if trace.meta.get("executor") == "sim" else "wall time",
        "profile": str(trace.meta.get("profile", "")),
        "layers": [int(trace.meta.get("simulated_layers", sched.meta.num_layers)), sched.meta.num_layers],
        "num_nodes": sched.meta.num_nodes,
        "num_chunks": sched.meta.num_chunks,
        "end_s": end,
        "states": list(STATES),
        "blocks": blocks,
        "changes": [(round(t - zero, 9), *rest) for t, *rest in _changes(kept, sched, len(blocks))],
        "budgets": [None if budget == UNLIMITED else budget for budget in sched.meta.budgets],
        "memory": _memory(trace.memory, sched.meta.num_nodes, zero, end),
        "links": _links(kept, zero, end),
        "kinds": {str(code): name for code, name in KIND_NAMES.items()},
        "lane_names": {str(code): name for code, name in LANE_NAMES.items()},
        "lanes": _lanes(kept, zero, end),
    }


# --- blocks ---


def _blocks(sched: Schedule) -> list[list[int]]:
    """[chunk, maker, head group, owner, tokens] of each block, in order of chunk and maker."""
    chunks, makers, groups = sched.owner.shape
    return [
        [c, m, g, int(sched.owner[c, m, g]), int(sched.tokens[c, m])]
        for c in range(chunks)
        for m in range(makers)
        for g in range(groups)
    ]


def _sets(sched: Schedule, row: int) -> list[int]:
    """Numbers of the blocks in a row's set that have tokens."""
    r = sched.step(row)
    _, makers, groups = sched.owner.shape
    lo, hi = r.c_lo, min(r.c_hi, sched.meta.num_chunks)
    heads = range(groups)[sched.groups(r.h_lo, r.h_hi)]
    return [
        (c * makers + m) * groups + g
        for c in range(lo, hi)
        for m in range(r.m_lo, r.m_hi)
        for g in heads
        if sched.tokens[c, m]
    ]


def _changes(events: Table, sched: Schedule, num_blocks: int) -> list[Change]:
    """What happens to the blocks of each node, by time; a state that comes back to what it was is left out."""
    found = [*_made(events, sched), *_received(events, sched), *_retired(events, sched)]
    found.sort(key=lambda change: change[0])
    now = np.zeros((sched.meta.num_nodes, num_blocks), dtype=np.int8)
    out: list[Change] = []
    for t, node, block, state in found:
        if state in (STREAMED, ARRIVING) and now[node, block] in (VALID, OWNER, DRAINING):
            continue
        if now[node, block] != state:
            now[node, block] = state
            out.append((t, node, block, state))
    return out


def _made(events: Table, sched: Schedule) -> Iterator[Change]:
    """A maker's own blocks: arriving while its layers are computed, then the owner's or a copy."""
    made = events[(events["kind"] == PRODUCE) & (events["stage"] == PREFILL) & (events["wait"] == 0)]
    chunks, makers, groups = sched.owner.shape
    for (node, chunk), mine in _grouped(made, "node", "chunk"):
        if not (0 <= chunk < chunks and sched.tokens[chunk, node]):
            continue
        for g in range(groups):
            block = (chunk * makers + node) * groups + g
            yield float(mine["t_start"].min()), node, block, ARRIVING
            yield float(mine["t_end"].max()), node, block, OWNER if sched.owner[chunk, node, g] == node else VALID


def _received(events: Table, sched: Schedule) -> Iterator[Change]:
    """Blocks that arrive: kept ones stay, streamed ones are gone when the chunk is done on that node."""
    s = sched.steps
    sends = events[(events["kind"] == SEND) & (events["purpose"] > 0) & (events["row"] >= 0) & (events["wait"] == 0)]
    sends = sends[s["payload"][sends["row"]] == KV]
    ends = {key: float(mine["t_end"].max()) for key, mine in _grouped(events, "node", "chunk")}
    flat = sched.owner.reshape(-1)
    for (row, node), mine in _grouped(sends, "row", "peer"):
        step = sched.step(row)
        if step.dst not in (-1, node):
            continue  # it passes through
        first, last = float(mine["t_start"].min()), float(mine["t_end"].max())
        for block in _sets(sched, row):
            yield first, node, block, ARRIVING
            if step.hold == KEEP:
                yield last, node, block, OWNER if flat[block] == node else VALID
            else:
                yield float(mine["t_end"].min()), node, block, STREAMED
                yield max(ends.get((node, step.chunk), last), last), node, block, FREED


def _retired(events: Table, sched: Schedule) -> Iterator[Change]:
    """Drains and frees, at their events or where the semantics put them."""
    s = sched.steps
    timed = {int(row): float(t) for row, t in zip(events["row"], events["t_start"], strict=True) if row >= 0}
    prefill = events[events["stage"] == PREFILL]
    starts = {key: float(mine["t_start"].min()) for key, mine in _grouped(prefill, "node", "chunk")}
    ends = {key[0]: float(mine["t_end"].max()) for key, mine in _grouped(prefill, "node")}
    for row in np.flatnonzero(np.isin(s["kind"], (DRAIN, FREE)) & (s["stage"] != DECODE)).tolist():
        node = int(s["node"][row])
        usual = ends.get(node, 0.0) if s["stage"][row] == CONVERGE else starts.get((node, int(s["chunk"][row])), 0.0)
        state = DRAINING if s["kind"][row] == DRAIN else FREED
        for block in _sets(sched, row):
            yield timed.get(row, usual), node, block, state


def _grouped(events: Table, *names: str) -> Iterator[tuple[tuple[int, ...], Table]]:
    """Events by the values of some columns."""
    if not len(events):
        return
    order = np.lexsort([events[name] for name in reversed(names)])
    keys = np.stack([events[name][order] for name in names], axis=1)
    cuts = np.flatnonzero((np.diff(keys, axis=0) != 0).any(1)) + 1
    for part in np.split(np.arange(len(order)), cuts):
        yield tuple(int(x) for x in keys[part[0]]), events[order[part]]


# --- memory, links, lanes ---


def _memory(memory: Table, num_nodes: int, zero: float, end: float) -> list[list[tuple[float, int]]]:
    """Per node (seconds, bytes in use); of many samples, the largest of each bin."""
    out = []
    for node in range(num_nodes):
        mine = memory[(memory["node"] == node) & (memory["t"] - zero <= end)]
        t, used = mine["t"] - zero, mine["bytes_in_use"]
        if len(mine) > MAX_SAMPLES:
            bins = np.minimum((t / max(end, 1e-300) * MAX_SAMPLES).astype(int), MAX_SAMPLES - 1)
            firsts = np.flatnonzero(np.diff(bins, prepend=-1))
            keep = [int(np.argmax(used[a:b]) + a) for a, b in zip(firsts, [*firsts[1:], len(t)], strict=True)]
            keep = sorted({*keep, int(len(t) - 1)})
            t, used = t[keep], used[keep]
        out.append([(round(float(a), 9), int(b)) for a, b in zip(t, used, strict=True)])
    return out


def _links(events: Table, zero: float, end: float) -> list[dict[str, Any]]:
    """Per link its ends, its bytes, and which part of each of BINS it was busy."""
    moved = events[(events["kind"] == SEND) & (events["purpose"] > 0) & (events["wait"] == 0)]
    out = []
    for (a, b), mine in _grouped(moved, "node", "peer"):
        load = _busy(mine["t_start"] - zero, mine["t_end"] - zero, end)
        out.append({"from": a, "to": b, "bytes": int(mine["payload_bytes"].sum()), "load": load})
    return out


def _busy(start: Array, stop: Array, end: float) -> list[float]:
    """Part of each bin that the spans cover, at most 1."""
    width = max(end, 1e-300) / BINS
    edges = np.arange(BINS + 1) * width
    covered = np.zeros(BINS)
    for a, b in zip(start, stop, strict=True):
        lo, hi = int(min(a / width, BINS - 1)), int(min(b / width, BINS - 1)) + 1
        covered[lo:hi] += np.maximum(0, np.minimum(b, edges[lo + 1 : hi + 1]) - np.maximum(a, edges[lo:hi]))
    return [round(float(x), 3) for x in np.minimum(covered / width, 1)]


def _lanes(events: Table, zero: float, end: float) -> list[tuple[float, float, int, int, int, int, int]]:
    """(start, end, node, lane, kind, chunk, wait); where there are too many, those of one kind are joined over gaps."""
    kept = events[(events["purpose"] > 0) | ~np.isin(events["kind"], (SEND,))]
    gap = 0.0
    while True:
        spans = list(_spans(kept, zero, gap))
        if len(spans) <= MAX_SPANS:
            return spans
        gap = max(gap * 2, end / 20_000)


def _spans(events: Table, zero: float, gap: float) -> Iterator[tuple[float, float, int, int, int, int, int]]:
    for (node, lane, kind, chunk, wait), mine in _grouped(events, "node", "lane", "kind", "chunk", "wait"):
        order = np.argsort(mine["t_start"], kind="stable")
        start, stop = mine["t_start"][order], np.maximum.accumulate(mine["t_end"][order])
        cuts = np.append(0, np.flatnonzero(start[1:] > stop[:-1] + gap) + 1)
        for a, b in zip(cuts, np.append(cuts[1:], len(start)), strict=True):
            yield round(float(start[a]) - zero, 9), round(float(stop[b - 1]) - zero, 9), node, lane, kind, chunk, wait
