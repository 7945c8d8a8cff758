"""A schedule unrolled: per node two lanes of instances and one chain of memory events. Facts only, nothing runs here.

A group is (node, chunk, stage), the rows that one layer loop repeats. Iteration `it` of a group runs a row with
`ahead` = a for payload tick `it + a`; iterations below 0 are the prologue. A tick is a layer, in decode
`token * num_layers + layer`.
"""

from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import numpy as np

from mcf.errors import ScheduleError
from mcf.schedule.deadlock import last_uses, use_pairs
from mcf.schedule.passes import intersects
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    CONVERGE,
    DECODE,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    PREFILL,
    PRODUCE,
    RECV,
    SEND,
    STREAM,
    Step,
)

TAKE, GIVE = 0, 1
ALL_ITERATIONS = -1000  # of a memory event that closes a group: slots held for the whole loop


class Instance(NamedTuple):
    """One run of one row: iteration `it` of its group's loop."""

    row: int
    it: int


class MemoryEvent(NamedTuple):
    """Memory taken or given back by a row in list order."""

    kind: int
    row: int
    it: int


@dataclass(kw_only=True)
class NodeProgram:
    """What one node runs: `lanes[0]` compute, `lanes[1]` NIC, and its memory events in list order."""

    lanes: tuple[list[Instance], list[Instance]] = field(default_factory=lambda: ([], []))
    chain: list[MemoryEvent] = field(default_factory=list)


class Program:
    """Everything about a schedule's rows that does not change while it runs."""

    def __init__(self, sched: Schedule, decode_tokens: int) -> None:
        """Unroll a schedule for so many generated tokens. Raises ScheduleError where it has no room for them."""
        check_decode(sched, decode_tokens)
        self.sched, self.decode_tokens = sched, decode_tokens
        layers = sched.meta.num_layers
        self.num_ticks = {PREFILL: layers, CONVERGE: layers, DECODE: layers * decode_tokens}
        self.rows = [Step(*step) for step in sched.steps.tolist()]
        self.after = [sched.after[r.after_lo : r.after_hi].tolist() for r in self.rows]
        pairs = use_pairs(sched)
        self.last_use = last_uses(sched, pairs).tolist()
        self.users: dict[int, list[int]] = {}
        for recv, user in zip(pairs[0].tolist(), pairs[1].tolist(), strict=True):
            self.users.setdefault(recv, []).append(user)
        self.released_by: dict[int, list[int]] = {}
        for recv, last in enumerate(self.last_use):
            if last >= 0:
                self.released_by.setdefault(last, []).append(recv)
        self.cells = [self._live_cells(r) for r in self.rows]
        self.recv_of = {(r.ref, r.node): i for i, r in enumerate(self.rows) if r.kind == RECV}
        self.edges = {i: self._send_edges(r) for i, r in enumerate(self.rows) if r.kind == SEND}
        self.final_merge = self._final_merges()
        self.group_end: dict[int, int] = {}
        self.nodes = [self._unroll(n) for n in range(sched.meta.num_nodes)]
        earlier = {i: self._earlier(i) for i, r in enumerate(self.rows) if r.is_retire}
        self.bringers = {i: rows for i, (rows, _) in earlier.items()}
        self.readers = {i: rows for i, (_, rows) in earlier.items()}

    def must_end(self, i: int) -> list[int]:
        """Earlier rows of the list whose every run a drain (arrivals) or a free (uses) waits for."""
        return self.bringers[i] if self.rows[i].kind == DRAIN else self.readers[i]

    def recv_and_users(self, recv: int) -> tuple[int, ...]:
        """A receive and the rows that use what it brings."""
        return recv, *self.users.get(recv, ())

    def place(self, row: int) -> int:
        """Place of a row in its node's list."""
        return row - self.sched.node_rows(self.rows[row].node).start

    def release_place(self, recv: int) -> int:
        """Place in the list behind which one layer's copy of a stream receive is given up."""
        last = self.last_use[recv]
        return self.place(last if last >= 0 else self.group_end[recv])

    def layer(self, tick: int) -> int:
        """Layer of a payload tick."""
        return tick % self.sched.meta.num_layers

    def positions(self, chunk: int, node: int, tick: int) -> Array:
        """Token positions of a node's pieces of a chunk; of the running token in decode."""
        meta = self.sched.meta
        if chunk == meta.num_chunks:
            return np.array([meta.prompt_tokens + tick // meta.num_layers])
        return np.concatenate([np.arange(lo, hi) for lo, hi in self.sched.spans(chunk, node)])

    def ticks(self, row: Step) -> int:
        """How often a row runs."""
        return 1 if row.is_retire else self.num_ticks[row.stage]

    def same_group(self, a: Step, b: Step) -> bool:
        """Say whether two rows of a node run in one loop."""
        return (a.chunk, a.stage) == (b.chunk, b.stage) and not a.is_retire and not b.is_retire

    def _live_cells(self, r: Step) -> list[tuple[int, int, int]]:
        """Blocks (chunk, maker, head group) of a row's set that have prompt tokens, in (maker, chunk) order."""
        tokens, groups = self.sched.tokens, self.sched.groups(r.h_lo, r.h_hi)
        return [
            (c, m, g)
            for m in range(r.m_lo, r.m_hi)
            for c in range(r.c_lo, min(r.c_hi, self.sched.meta.num_chunks))
            if tokens[c, m]
            for g in range(groups.start, groups.stop)
        ]

    def _send_edges(self, r: Step) -> list[tuple[tuple[tuple[int, int], ...], int, int]]:
        """(links crossed, node that must have it first, receiver) of each delivery."""
        route = self.sched.routes[r.route] if r.route >= 0 else ((r.node, r.dst),)
        return [(route, r.node, r.dst)] if r.dst >= 0 else [(((a, b),), a, b) for a, b in route]

    def _final_merges(self) -> dict[tuple[int, int], int]:
        """(node, chunk) -> the row whose merge is the attention output of that node's queries."""
        return {(r.node, r.chunk): i for i, r in enumerate(self.rows) if r.kind == MERGE and r.q in (r.node, ALL)}

    def _unroll(self, node: int) -> NodeProgram:
        out = NodeProgram()
        mine = self.sched.node_rows(node)
        for _, rows in groupby(mine, key=lambda i: (self.rows[i].chunk, self.rows[i].stage)):
            group = list(rows)
            retire = [i for i in group if self.rows[i].is_retire]
            for i in retire:
                out.lanes[self.rows[i].lane].append(Instance(i, 0))
                if self.rows[i].kind == FREE:
                    out.chain.append(MemoryEvent(GIVE, i, 0))
            self._unroll_loop(out, [i for i in group if not self.rows[i].is_retire])
        return out

    def _unroll_loop(self, out: NodeProgram, group: list[int]) -> None:
        if not group:
            return
        ticks = self.ticks(self.rows[group[0]])
        self.group_end |= dict.fromkeys(group, group[-1])
        for it in range(-max(self.rows[i].ahead for i in group), ticks):
            for i in group:
                r = self.rows[i]
                if -r.ahead <= it < ticks - r.ahead:
                    out.lanes[r.lane].append(Instance(i, it))
                    self._take(out, i, it)
                    out.chain.extend(MemoryEvent(GIVE, recv, it) for recv in self.released_by.get(i, ()))
        held = [i for i in group if self.is_loop_slot(i)]
        out.chain.extend(MemoryEvent(GIVE, i, ALL_ITERATIONS) for i in held)

    def is_loop_slot(self, i: int) -> bool:
        """Say whether a row is a stream receive whose slots are held for the whole loop."""
        r = self.rows[i]
        return r.is_kv_recv and r.hold == STREAM and self.last_use[i] < 0

    def _take(self, out: NodeProgram, i: int, it: int) -> None:
        r = self.rows[i]
        first = it == -r.ahead
        if r.kind == PRODUCE:
            takes = first and r.stage == PREFILL
        else:
            takes = r.is_kv_recv and (first or (r.hold != KEEP and not self.is_loop_slot(i)))
        if takes:
            out.chain.append(MemoryEvent(TAKE, i, it))

    def _earlier(self, i: int) -> tuple[list[int], list[int]]:
        """Earlier rows of the list, but for decode, that bring the blocks of a drain or free, and that read them."""
        before = np.arange(self.sched.node_bounds[self.rows[i].node], i)
        s = self.sched.steps[before]
        touches = intersects(s, self.sched.steps[i]) & (s["stage"] != DECODE)
        brings = (s["kind"] == PRODUCE) | ((s["kind"] == RECV) & (s["payload"] == KV) & (s["hold"] == KEEP))
        reads = (s["kind"] == ATTEND) | ((s["kind"] == SEND) & (s["payload"] == KV))
        return before[touches & brings].tolist(), before[touches & reads].tolist()


def check_decode(sched: Schedule, decode_tokens: int) -> None:
    """Raise ScheduleError for more tokens than a schedule has room for, and where it cannot decode at all."""
    room = sched.meta.max_new_tokens
    if not 0 <= decode_tokens <= room:
        raise ScheduleError(f"got {decode_tokens} tokens to decode: the schedule has room for {room}; plan with more")
    if decode_tokens and not (sched.steps["stage"] == DECODE).any():
        raise ScheduleError(f"got {decode_tokens} tokens to decode: the schedule has no decode rows; plan them")


def check_tensors(program: Program, **tensors: Array) -> tuple[Array, ...]:
    """Return q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d] in float64. Raises ScheduleError for other shapes."""
    meta = program.sched.meta
    for name, value in tensors.items():
        heads = meta.num_q_heads if name == "q" else meta.num_kv_heads
        expected = (meta.num_layers, meta.prompt_tokens + program.decode_tokens, heads, meta.head_dim)
        if value.shape != expected:
            raise ScheduleError(f"got {name} of shape {value.shape}: the schedule expects {expected}")
    return tuple(np.asarray(value, dtype=np.float64) for value in tensors.values())
