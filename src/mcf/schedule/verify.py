"""`verify`: replay a schedule without a clock and judge it by the laws V1..V8. Every schedule that runs has passed
here.
"""

from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np

from mcf.cluster import Topology
from mcf.errors import LawError
from mcf.schedule import memory
from mcf.schedule.cover import check_coverage
from mcf.schedule.deadlock import early_forwards, last_uses, stuck_rows, use_pairs
from mcf.schedule.frame import check_frame
from mcf.schedule.kv import ABSENT, DRAINING, STATE_NAMES, STREAMED, VALID
from mcf.schedule.laws import above
from mcf.schedule.passes import gather_after, group_keys, recv_table
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.spec import check
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    COLUMNS,
    DECODE,
    DRAIN,
    FETCHED_KV,
    FREE,
    KEEP,
    KV,
    NEW_KV,
    PREFILL,
    PRODUCE,
    QUERY,
    QUERY_BYTES,
    RECV,
    SEND,
    STATE,
    STATE_BYTES,
)
from mcf.schedule.text import grid

EMPTY = 9  # a cell without tokens: nothing to hold


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the replay saw. Bytes are over all layers; decode traffic is per generated token.

    `peak_bytes` [N]: most bytes in use; `page_bytes` [N]: most in pages; `slot_bytes` [N]: most in stream slots;
    `reserve_bytes` [N]; `replica_factor` [C]: copies per token held at the end of each chunk's loop; `traffic` purpose
    -> bytes of prefill, each hop counted; `decode_traffic` bytes per token; `shares` [N] tokens owned at the end.
    """

    peak_bytes: tuple[int, ...]
    page_bytes: tuple[int, ...]
    slot_bytes: tuple[int, ...]
    reserve_bytes: tuple[int, ...]
    replica_factor: tuple[float, ...]
    traffic: dict[str, int]
    decode_traffic: dict[str, int]
    shares: tuple[int, ...]
    num_rows: int = field(default=0)


def purposes(sched: Schedule) -> Array:
    """[R] purpose code of each send or receive row; 0 elsewhere."""
    s = sched.steps
    new = np.where(s["c_lo"] >= s["chunk"], NEW_KV, FETCHED_KV)
    code = np.select(
        [s["payload"] == KV, s["payload"] == QUERY, s["payload"] == STATE], [new, QUERY_BYTES, STATE_BYTES], 0
    )
    return np.where((s["kind"] == SEND) | (s["kind"] == RECV), code, 0)


def num_hops(sched: Schedule) -> Array:
    """[R] links that each send crosses; 0 elsewhere."""
    s = sched.steps
    lengths = np.array([*(len(r) for r in sched.routes), 1], dtype=np.int64)
    return np.where(s["kind"] == SEND, lengths[s["route"]], 0)


def verify(sched: Schedule) -> Report:
    """Judge a schedule; raises LawError (law, row, grid) or returns what the replay saw.

    Cost is linear in rows (a million in seconds); node lists are replayed one by one, since peaks do not depend on
    drift.
    """
    check_frame(sched)
    check(sched)
    _check_routes(sched)
    _check_matching(sched)
    pairs = use_pairs(sched)
    early = early_forwards(sched, pairs)
    if len(early):
        _break(sched, "V6", "a send is further ahead than the receive of its blocks", int(early[0]))
    stuck = stuck_rows(sched, pairs)
    if len(stuck):
        row = int(stuck[0])
        _break(sched, "V6", f"{len(stuck)} rows wait for one another for ever{_why_stuck(sched, stuck)}", row)
    check_coverage(sched)
    return _replay_all(sched, last_uses(sched, pairs))


def _why_stuck(sched: Schedule, stuck: Array) -> str:
    """The usual reason: relays pass KV on, as sends or in a tree, in orders that close a circle."""
    s = sched.steps[stuck]
    sends = s["kind"] == SEND
    forwards = sends & (s["payload"] == KV) & ((s["m_hi"] <= s["node"]) | (s["m_lo"] > s["node"]))
    cure = "write each hop in the policy, as `gather` does"
    if forwards.any():
        return (
            f"; {int(forwards.sum())} of them pass on KV that their node must receive first, each behind other such "
            f"sends: {cure}"
        )
    trees = s[sends & (s["dst"] < 0)][["node", "route"]].tolist()
    relayed = sum(any(a != root for a, _ in sched.routes[route]) for root, route in trees)
    return f"; {relayed} of them are multicasts whose relays must receive first, each behind others: {cure}" * (
        relayed > 0
    )


def _break(sched: Schedule, law: str, text: str, row: int) -> NoReturn:
    raise LawError(law, text, row=row, grid=above(law, grid(sched, mark=row)))


def _check_routes(sched: Schedule) -> None:
    """V8: routes are connected walks or trees over links of the topology, from the sender to its receivers."""
    s, topology = sched.steps, Topology.parse(sched.meta.topology, sched.meta.num_nodes)
    sends = np.flatnonzero(s["kind"] == SEND)
    outside = (s["route"][sends] < -1) | (s["route"][sends] >= len(sched.routes))
    outside |= (s["dst"][sends] >= sched.meta.num_nodes) | ((s["dst"][sends] < 0) & (s["route"][sends] < 0))
    if outside.any():
        _break(sched, "V8", "a send names no receiver or no known route", int(sends[outside.argmax()]))
    keys = np.unique(np.stack([s["node"][sends], s["dst"][sends], s["route"][sends]], 1), axis=0, return_index=True)
    for (node, dst, route), at in zip(keys[0].tolist(), keys[1].tolist(), strict=True):
        problem = _route_problem(topology, node, dst, sched.routes[route] if route >= 0 else ((node, dst),))
        if problem:
            _break(sched, "V8", problem, int(sends[at]))


def _route_problem(topology: Topology, node: int, dst: int, route: tuple[tuple[int, int], ...]) -> str | None:
    reached, at = {node}, node
    for a, b in route:
        if not (0 <= a < topology.num_nodes and 0 <= b < topology.num_nodes) or not topology.has_link(a, b):
            return f"hop {a}>{b} is no link of the topology {topology.name}"
        if a not in reached or (dst >= 0 and a != at):
            return f"hop {a}>{b} starts where the payload has not been"
        if b in reached:
            return f"hop {a}>{b} reaches node {b} a second time"
        reached.add(b)
        at = b
    return None if dst < 0 or at == dst else f"the route ends at node {at}: expected node {dst}"


def _check_matching(sched: Schedule) -> None:
    """V6: every `after` points backwards in its own list; each send has one receive, which says the same."""
    s = sched.steps
    bad = (s["after_lo"] < 0) | (s["after_hi"] < s["after_lo"]) | (s["after_hi"] > len(sched.after))
    if bad.any():
        _break(sched, "V6", "an `after` range lies outside the table", int(bad.argmax()))
    segment, target = gather_after(sched)
    bad = (target < 0) | (target >= segment) | (s["node"][np.clip(target, 0, len(s) - 1)] != s["node"][segment])
    if bad.any():
        _break(sched, "V6", "`after` does not point backwards in the same list", int(segment[bad.argmax()]))
    expected = recv_table(sched)
    rows = np.flatnonzero(s["kind"] == RECV)
    refs = s["ref"][rows]
    if ((refs < 0) | (refs >= len(s))).any() or len(expected) != len(rows):
        text = f"{len(rows)} receives for {len(expected)} deliveries: expected one each"
        _break(sched, "V6", text, int(rows[0]) if len(rows) else 0)
    have, want = np.lexsort((s["node"][rows], refs)), np.lexsort((expected["node"], expected["ref"]))
    got, exp = s[rows[have]], expected[want]
    names = [n for n in COLUMNS if not n.startswith("after")]
    bad = np.any([got[n] != exp[n] for n in names], axis=0)
    if bad.any():
        _break(sched, "V6", "a receive does not fit its send", int(rows[have][bad.argmax()]))


def _replay_all(sched: Schedule, last: Array) -> Report:
    meta = sched.meta
    replay = _Replay(sched, last)
    peaks = [replay.node(n) for n in range(meta.num_nodes)]
    shares = (sched.tokens[:, :, None] * (sched.owner >= 0)).reshape(-1)
    weight = (
        np.repeat(np.diff(meta.head_cuts)[None, :], meta.num_chunks * meta.num_nodes, 0).reshape(-1) / meta.num_kv_heads
    )
    owned = np.bincount(sched.owner.reshape(-1), weights=shares * weight, minlength=meta.num_nodes)
    _check_shares(sched, owned)
    s = sched.steps
    total = sched.row_bytes * num_hops(sched) * meta.num_layers
    code = purposes(sched)
    names = {NEW_KV: "new_kv", FETCHED_KV: "fetched_kv", QUERY_BYTES: "query", STATE_BYTES: "state"}
    prefill, decode = s["stage"] == PREFILL, s["stage"] == DECODE
    seen = sched.tokens.sum(1).cumsum()
    return Report(
        peak_bytes=tuple(p[0] for p in peaks),
        page_bytes=tuple(p[1] for p in peaks),
        slot_bytes=tuple(p[2] for p in peaks),
        reserve_bytes=tuple(memory.reserve_bytes(sched).tolist()),
        replica_factor=tuple((replay.held / seen).round(6).tolist()),
        traffic={name: int(total[prefill & (code == c)].sum()) for c, name in names.items()},
        decode_traffic={name: int(total[decode & (code == c)].sum()) for c, name in names.items()},
        shares=tuple(round(x) for x in owned.tolist()),
        num_rows=len(sched),
    )


def _check_shares(sched: Schedule, owned: Array) -> None:
    """V3: the tokens each node owns at the end are those declared, or equal to within one page."""
    meta = sched.meta
    if meta.shares:
        if tuple(round(x) for x in owned.tolist()) != meta.shares:
            raise LawError("V3", f"final shares are {owned.round(1).tolist()} tokens: declared are {list(meta.shares)}")
    elif owned.max() - owned.min() > meta.page_tokens:
        raise LawError(
            "V3", f"final shares {owned.round(1).tolist()} differ by more than a page of {meta.page_tokens} tokens"
        )


class _Replay:
    """One node's list after the other: states of every cell, bytes in use."""

    def __init__(self, sched: Schedule, last: Array) -> None:
        self.sched = sched
        meta = sched.meta
        self.steps = sched.steps.tolist()
        self.groups = {cut: i for i, cut in enumerate(meta.head_cuts)}
        self.owner, self.tokens = sched.owner, sched.tokens
        self.block_bytes = memory.block_bytes(sched)
        self.own_bytes = memory.own_bytes(sched)
        self.reserve = memory.reserve_bytes(sched).tolist()
        self.foreign = bool(len(sched.owners))
        self.owned_from = self._owned_from()
        self.held = np.zeros(meta.num_chunks)
        self.releases: dict[int, list[int]] = {}
        for recv in np.flatnonzero(last >= 0).tolist():
            self.releases.setdefault(int(last[recv]), []).append(recv)
        self.passing = frozenset(np.flatnonzero(last >= 0).tolist())  # streams that give their slot back in each layer
        self.keys = group_keys(sched.steps, meta.num_chunks).tolist()
        weights = np.diff(meta.head_cuts) / meta.num_kv_heads
        self.weight = self.tokens[:, :, None] * weights[None, None, :]

    def _owned_from(self) -> Array:
        """[C, N, G] chunk in whose loop the owner of each block receives it to keep; beyond the last where it never
        does.
        """
        out = np.full(self.owner.shape, self.sched.meta.num_chunks + 1)
        s = self.sched.steps
        for row in np.flatnonzero((s["kind"] == RECV) & (s["hold"] == KEEP) & self.foreign).tolist():
            step = self.steps[row]
            cells = self._cells(step)
            out[cells] = np.where(self.owner[cells] == step[3], np.minimum(out[cells], step[4]), out[cells])
        return out

    def node(self, node: int) -> tuple[int, int, int]:
        """Replay one list; returns its most bytes in use: in all, in pages, in slots."""
        meta = self.sched.meta
        self.n = node
        self.state = np.where(self.tokens[:, :, None] > 0, ABSENT, EMPTY).astype(np.uint8)
        self.state = np.repeat(self.state, meta.num_groups, 2) if meta.num_groups > 1 else self.state
        self.state = np.concatenate([self.state, np.full((1, *self.state.shape[1:]), VALID, np.uint8)])
        self.budget = meta.budgets[node]
        self.bytes = self.peak = self.page_peak = self.slot_peak = self.slots = 0
        self.passing_bytes = self.passing_peak = 0
        self.streams: dict[int, int] = {}
        self.queries: set[tuple[int, int]] = set()
        self.now = 0.0
        rows = self.sched.node_rows(node)
        self._take(self.reserve[node], rows.start if len(rows) else 0)
        chunk, key, converged = 0, -1, False
        for row in rows:
            step = self.steps[row]
            if self.keys[row] != key:
                self._end_group(row - 1)
                key = self.keys[row]
                self.held[chunk : step[4]] += self.now
                chunk = step[4]
                if step[2] == DECODE and not converged:
                    self._check_converged(row)
                    converged = True
            self._row(row, step)
            for recv in self.releases.get(row, ()):
                self._release(recv)
        self._end_group(rows.stop - 1)
        self.held[chunk:] += self.now if chunk < meta.num_chunks else 0
        if not converged:
            self._check_converged(rows.stop - 1 if len(rows) else 0)
        return self.peak, self.page_peak, self.slot_peak

    def _row(self, row: int, step: tuple[int, ...]) -> None:
        kind = step[0]
        if kind == PRODUCE:
            self._produce(row, step)
        elif kind == RECV:
            self._recv(row, step)
        elif kind == ATTEND:
            self._need(row, step)
            if step[14] not in (self.n, ALL):
                self._need_query(row, step)
        elif kind == SEND:
            if step[11] == KV:
                self._need(row, step)
            elif step[11] == QUERY and step[14] != self.n:
                self._need_query(row, step)
        elif kind == DRAIN:
            self._drain(row, step)
        elif kind == FREE:
            self._free(row, step)

    def _cells(self, step: tuple[int, ...]) -> tuple[slice, slice, slice]:
        return slice(step[5], step[6]), slice(step[7], step[8]), slice(self.groups[step[9]], self.groups[step[10]])

    def _need(self, row: int, step: tuple[int, ...]) -> None:
        if step[2] == DECODE and not (
            (step[7], step[8]) == (self.n, self.n + 1) or step[6] <= self.sched.meta.num_chunks
        ):
            _break(self.sched, "V1", "generated tokens of another node are not here", row)
        part = self.state[self._cells(step)]
        if (part == DRAINING).any():
            _break(self.sched, "V1", f"node {self.n} starts new work on a block that is draining", row)
        low = part.min()
        if low < VALID:
            _break(
                self.sched, "V1", f"node {self.n} does not hold the whole set: a block is {STATE_NAMES[int(low)]}", row
            )

    def _span(self, step: tuple[int, ...]) -> range:
        return range(self.groups[step[9]], self.groups[step[10]])

    def _need_query(self, row: int, step: tuple[int, ...]) -> None:
        if any((step[14], group) not in self.queries for group in self._span(step)):
            _break(self.sched, "V1", f"the queries of node {step[14]} have not been received", row)

    def _change(
        self, row: int, step: tuple[int, ...], old: int, new: int, law: str, what: str
    ) -> tuple[slice, slice, slice]:
        cells = self._cells(step)
        part = self.state[cells]
        live = part != EMPTY
        if (part[live] != old).any():
            wrong = int(part[live & (part != old)][0])
            _break(self.sched, law, f"{what} of a block that is {STATE_NAMES[wrong]}: expected {STATE_NAMES[old]}", row)
        part[live] = new
        return cells

    def _produce(self, row: int, step: tuple[int, ...]) -> None:
        if step[2] == DECODE:
            return
        cells = self._change(row, step, ABSENT, VALID, "V1", "produce")
        chunk = step[4]
        self.now += float(self.weight[cells].sum())
        grown = int(self.own_bytes[chunk + 1, self.n] - self.own_bytes[chunk, self.n])
        if self.foreign:
            mine = self.owner[chunk, self.n] == self.n
            grown += int(self.block_bytes[chunk, self.n][~mine].sum())
        self._take(grown, row)

    def _recv(self, row: int, step: tuple[int, ...]) -> None:
        if step[11] == QUERY:
            self.queries |= {(step[14], group) for group in self._span(step)}
        if step[11] != KV:
            return
        if step[12] == KEEP:
            cells = self._change(row, step, ABSENT, VALID, "V1", "receive")
            self.now += float(self.weight[cells].sum())
            self._take(int(self.block_bytes[cells].sum()), row)
            return
        self._change(row, step, ABSENT, STREAMED, "V1", "receive")
        tokens = self.sched.tokens_in(*step[5:9])
        size = memory.stream_bytes(self.sched, tokens, step[9], step[10], step[13])
        limit = self.sched.meta.buffer_bytes
        if limit and size > limit * (step[13] + 1):
            _break(
                self.sched, "V5", f"a stream of {size // (step[13] + 1)} bytes per layer: the buffer holds {limit}", row
            )
        self.streams[row] = size
        self.slots += size
        if row in self.passing:
            self.passing_bytes += size
            self.passing_peak = max(self.passing_peak, self.passing_bytes)
        self._take(size, row)

    def _drain(self, row: int, step: tuple[int, ...]) -> None:
        cells = self._cells(step)
        if ((self.owner[cells] == self.n) & (self.state[cells] == VALID)).any():
            _break(self.sched, "V2", f"node {self.n} drains a block that it owns", row)
        self._change(row, step, VALID, DRAINING, "V1", "drain")

    def _free(self, row: int, step: tuple[int, ...]) -> None:
        cells = self._change(row, step, DRAINING, ABSENT, "V1", "free")
        if self.foreign and step[7] <= self.n < step[8]:
            mine = cells[0], slice(self.n, self.n + 1), cells[2]
            live = self.tokens[mine[:2]][:, :, None] > 0
            if (live & (self.owned_from[mine] >= step[4])).any():
                _break(self.sched, "V2", f"node {self.n} frees a block before its owner has it", row)
        self.now -= float(self.weight[cells].sum())
        self.bytes -= int(self.block_bytes[cells].sum())

    def _release(self, recv: int) -> None:
        size = self.streams.pop(recv, 0)
        self._change(recv, self.steps[recv], STREAMED, ABSENT, "V1", "release")
        self.bytes -= size
        self.slots -= size
        if recv in self.passing:
            self.passing_bytes -= size

    def _end_group(self, row: int) -> None:
        """Judge the loop's later layers, where passing streams meet all that lasts for the loop; then it is over."""
        if self.passing_peak and self.sched.meta.num_layers > 1:
            more = self.passing_peak - self.passing_bytes
            self.slots += more
            self._take(more, row)
            self.slots -= more
            self.bytes -= more
        self.passing_peak = 0
        for recv in list(self.streams):
            self._release(recv)
        self.queries.clear()

    def _take(self, size: int, row: int) -> None:
        self.bytes += size
        self.slot_peak = max(self.slot_peak, self.slots)
        self.page_peak = max(self.page_peak, self.bytes - self.slots)
        if self.bytes > self.peak:
            self.peak = self.bytes
            if 0 <= self.budget < self.bytes:
                over = f"the budget is {self.budget}, {self.bytes - self.budget} are missing"
                text = f"node {self.n} needs {self.bytes} bytes of KV memory: {over}"
                _break(self.sched, "V4", text, row)

    def _check_converged(self, row: int) -> None:
        mine, state = self.owner == self.n, self.state[:-1]
        live = state != EMPTY
        if (live & mine & (state != VALID)).any():
            c, m = np.argwhere(live & mine & (state != VALID))[0][:2].tolist()
            _break(
                self.sched,
                "V3",
                f"node {self.n} owns the block of chunk {c}, maker {m}, and does not hold it at the end",
                row,
            )
        if (live & ~mine & (state != ABSENT)).any():
            c, m = np.argwhere(live & ~mine & (state != ABSENT))[0][:2].tolist()
            _break(self.sched, "V3", f"node {self.n} still holds the block of chunk {c}, maker {m}, at the end", row)


__all__ = ["Report", "num_hops", "purposes", "verify"]
