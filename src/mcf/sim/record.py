"""A finished machine -> the columns of a trace, in model time."""

import numpy as np

from mcf.schedule import memory
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import COMPUTE, KEEP, NEW_KV, PRODUCE, RECV, SEND
from mcf.schedule.verify import purposes
from mcf.sim.machine import Machine
from mcf.trace import EVENT, MEMORY, Trace
from mcf.trace.columns import Table


def to_trace(machine: Machine, meta: dict[str, str | int | float | bool]) -> Trace:
    """Compute rows, the gaps between them as waits, and each payload's crossing of each link."""
    sched = machine.program.sched
    work = _work(sched, machine)
    events = np.concatenate([work, _waits(work), _hops(sched, machine)])
    order = np.lexsort((events["row"], events["t_start"]))
    return Trace(events=events[order], memory=_memory(sched, machine), meta=dict(meta))


def multicast_rate(sched: Schedule, trace: Trace, *, folded: bool = False) -> float:
    """Median rate in bytes/s at which a chunk's new block reaches all of its receivers, over blocks and layers.

    Where one node stands for all, hops of all makers' blocks are those of one maker's, renamed.
    """
    e = trace.events[trace.events["purpose"] == NEW_KV]
    if not len(e):
        return 0.0
    steps = sched.steps[e["row"]]
    sets = [steps[name] for name in ("c_lo", "c_hi", "m_lo", "m_hi", "h_lo", "h_hi")]
    if folded:
        sets[2:4] = [sets[3] - sets[2]]
    keys = np.ascontiguousarray(np.stack([e["layer"], e["chunk"], *sets], 1).astype("<i4"))
    _, block = np.unique(keys.view(f"V{keys.itemsize * keys.shape[1]}").reshape(-1), return_inverse=True)
    num = int(block.max()) + 1
    first, last = np.full(num, np.inf), np.zeros(num)
    np.minimum.at(first, block, e["t_start"])
    np.maximum.at(last, block, e["t_end"])
    size = np.zeros(num)
    size[block] = e["payload_bytes"]
    took = last - first
    return float(np.median(size[took > 0] / took[took > 0])) if (took > 0).any() else 0.0


def _table(sched: Schedule, insts: Array, ticks: int, start: Array, end: Array) -> Table:
    rows, layers = np.divmod(insts, ticks)
    out = np.zeros(len(insts), EVENT)
    for name in ("kind", "lane", "stage", "node", "chunk"):
        out[name] = sched.steps[name][rows]
    out["row"], out["layer"], out["peer"] = rows, layers, -1
    out["t_start"], out["t_end"] = start, end
    return out


def _work(sched: Schedule, machine: Machine) -> Table:
    """Rows that compute, on either lane."""
    start, end = np.array(machine.start), np.array(machine.end)
    moves = np.isin(sched.steps["kind"], (SEND, RECV))
    insts = np.flatnonzero(~np.isnan(start) & np.repeat(~moves, machine.ticks))
    return _table(sched, insts, machine.ticks, start[insts], end[insts])


def _waits(work: Table) -> Table:
    """Time in which a compute lane stood still before a row: nothing but communication can hold it up."""
    mine = work[work["lane"] == COMPUTE]
    mine = mine[np.lexsort((mine["t_end"], mine["t_start"], mine["node"]))]
    first = np.diff(mine["node"], prepend=-1) != 0
    before = np.where(first, 0.0, np.roll(mine["t_end"], 1)) if len(mine) else np.empty(0)
    out: Table = mine[mine["t_start"] > before].copy()
    out["t_end"], out["t_start"] = out["t_start"], before[mine["t_start"] > before]
    out["wait"] = 1
    return out


def _hops(sched: Schedule, machine: Machine) -> Table:
    hops = np.frombuffer(machine.transfers.hops).reshape(-1, 5)
    insts = hops[:, 0].astype(np.int64)
    out = _table(sched, insts, machine.ticks, hops[:, 3], hops[:, 4])
    rows = insts // machine.ticks
    out["node"], out["peer"] = hops[:, 1], hops[:, 2]
    out["purpose"], out["payload_bytes"] = purposes(sched)[rows], sched.row_bytes[rows]
    return out


def _memory(sched: Schedule, machine: Machine) -> Table:
    """KV bytes in use after each memory event; whole pages, all layers, as `verify` counts them."""
    reserve, num = memory.reserve_bytes(sched), sched.meta.num_nodes
    now, node, row, sign = np.frombuffer(machine.samples).reshape(-1, 4).T
    nodes, rows = node.astype(np.int64), row.astype(np.int64)
    out = np.zeros(num + len(now), MEMORY)
    out["node"], out["t"] = np.concatenate([np.arange(num), nodes]), np.concatenate([np.zeros(num), now])
    out["chunk"] = np.concatenate([np.full(num, -1), sched.steps["chunk"][rows]])
    used, place = np.unique(rows, return_inverse=True)
    sizes = np.array(_sizes(sched, used), dtype=np.int64)
    change = np.concatenate([reserve, sizes[place] * sign.astype(np.int64)])
    order = np.argsort(out["node"], kind="stable")
    total = change[order].cumsum()
    first = np.searchsorted(out["node"][order], np.arange(num))
    out["bytes_in_use"][order] = total - (total[first] - reserve)[out["node"][order]]
    return out


def _sizes(sched: Schedule, rows: Array) -> list[int]:
    """Bytes that each row takes or gives back."""
    sizes = _Sizes(sched)
    return [sizes(row) for row in rows.tolist()]


class _Sizes:
    """Bytes that a row takes or gives back, by row."""

    def __init__(self, sched: Schedule) -> None:
        self.sched = sched
        self.blocks, own = memory.block_bytes(sched), memory.own_bytes(sched)
        foreign = sched.owner != np.arange(sched.meta.num_nodes)[None, :, None]
        self.produced = np.diff(own, axis=0) + (self.blocks * foreign).sum(-1)

    def __call__(self, row: int) -> int:
        r = self.sched.step(row)
        if r.kind == PRODUCE:
            return int(self.produced[r.chunk, r.node])
        if r.kind == RECV and r.hold != KEEP:
            tokens = self.sched.tokens_in(r.c_lo, r.c_hi, r.m_lo, r.m_hi)
            return memory.stream_bytes(self.sched, tokens, r.h_lo, r.h_hi, r.ahead)
        return int(self.blocks[r.c_lo : r.c_hi, r.m_lo : r.m_hi, self.sched.groups(r.h_lo, r.h_hi)].sum())
