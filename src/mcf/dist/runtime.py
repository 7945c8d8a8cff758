"""One node obeying its list: two lanes, a layer loop, and nothing decided.

The compute lane runs on the calling thread; NIC rows start as soon as they may, in list order, whenever the calling
thread is here; transfers end on threads of their own. Iteration i of a chunk's loop works on layer i; a row with
`ahead = a` transfers layer i + a, so iterations -a..-1 are the prologue.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from mcf.attn import kernels
from mcf.dist.pool import KvPool
from mcf.dist.program import Lanes, Loop, lanes, loops
from mcf.dist.store import KvStore, Segment
from mcf.dist.transfers import Transfers
from mcf.dist.transport import Transport
from mcf.schedule import Schedule
from mcf.schedule.steps import (
    ATTEND,
    COMPUTE,
    CONVERGE,
    DECODE,
    DRAIN,
    KEEP,
    KV,
    MERGE,
    PREFILL,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STREAM,
    Step,
)
from mcf.trace import TraceBuilder

Row = tuple[int, Step]
State = kernels.TorchState


class NodeRuntime:
    """Executes one node of a verified schedule without multicast.

    Call in order: for each chunk `begin_chunk`, the layers' `attention` (through the model, or `walk` where the node
    has no tokens), `end_chunk`; then `converge`; then per generated token `begin_token`, the layers, `end_token`.
    """

    def __init__(
        self,
        sched: Schedule,
        node: int,
        pool: KvPool,
        transport: Transport,
        *,
        dtype: torch.dtype,
        scale: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.sched, self.node, self.pool, self.clock = sched, node, pool, clock
        self.meta, self.dtype = sched.meta, dtype
        self.scale = self.meta.head_dim**-0.5 if scale is None else scale
        self.trace = TraceBuilder()
        self.store = KvStore(sched, node, pool)
        self.transfers = Transfers(sched, node, self.store, transport, dtype=dtype, trace=self.trace, clock=clock)
        self.loops = loops(sched, node)
        self.segments: dict[int, list[Segment]] = {}
        self._enter(PREFILL, 0)

    # -- phases ---------------------------------------------------------------------------------------------------

    def begin_chunk(self, chunk: int) -> None:
        """Run the rows between chunks, then the prologue of the chunk's loop."""
        self._enter(PREFILL, chunk)
        self._retire()
        for i in range(-self.loop.max_ahead, 0):
            self._begin_iteration(i)
            self._run(lanes([(row, step) for row, step in self.loop.rows if step.ahead]))
        self._begin_iteration(0)
        self._run(self.loop.before)
        self.dense_from = self.clock()

    def end_chunk(self) -> None:
        """Wait for all transfers of the chunk's loop; give the stream slots back."""
        self._note_dense(self.meta.num_layers)
        self._finish_transfers()
        for row, step in self.loop.rows:
            if step.kind == RECV and step.hold == KEEP:
                self.store.arrive(step)
            elif row in self.store.slots:
                self.store.release(row, step)
        self._note_memory()

    def converge(self) -> None:
        """Retire every replica: only owners hold blocks afterwards."""
        self._enter(CONVERGE, self.meta.num_chunks)
        self._retire()
        self._note_memory()

    def begin_token(self, index: int) -> None:
        """Start the template for the generated token at position S + index."""
        self._enter(DECODE, self.meta.num_chunks)
        self.stores_token = (index // self.meta.page_tokens) % self.meta.num_nodes == self.node
        if self.stores_token:
            self.store.append_generated()
        self._begin_iteration(0)
        self._run(self.loop.before)
        self.dense_from = self.clock()

    def end_token(self) -> None:
        """Wait for the token's last transfers."""
        self._note_dense(self.meta.num_layers)
        self._finish_transfers()

    def walk(self) -> None:
        """Walk all layers without tokens: receive and serve."""
        empty_q = torch.empty(0, self.meta.num_q_heads, self.meta.head_dim, dtype=self.dtype)
        empty_kv = torch.empty(0, self.meta.num_kv_heads, self.meta.head_dim, dtype=self.dtype)
        for layer in range(self.meta.num_layers):
            self.attention(layer, empty_q, empty_kv, empty_kv, self.scale)

    def close(self) -> None:
        """Let the waiter threads go."""
        self.transfers.close()

    # -- one layer ------------------------------------------------------------------------------------------------

    def attention(self, layer_idx: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Run one layer's rows; q [T, Hq, d], k and v [T, Hkv, d] of this node's tokens -> output [T, Hq, d]."""
        self._note_dense(layer_idx)
        self.scale, self.q = scale, q
        self.out = torch.empty(q.shape, dtype=q.dtype)
        if not self.loop.num_pre:
            self._begin_iteration(layer_idx)
        if len(q):
            self._store_new(layer_idx, k, v)
        self._run(self.loop.behind)
        if self.loop.releases:
            self._release_rest()
        if self.loop.num_pre and layer_idx + 1 < self.meta.num_layers:
            self._begin_iteration(layer_idx + 1)
            self._run(self.loop.before)
        self.dense_from = self.clock()
        return self.out

    def _enter(self, stage: int, chunk: int) -> None:
        self.loop = self.loops.get((stage, chunk)) or Loop(chunk=chunk, stage=stage)
        self.spans = self.sched.spans(chunk, self.node) if stage == PREFILL else []
        self.transfers.direct = stage == DECODE
        self.segments.clear()
        self._begin_iteration(0)
        self.dense_from = self.clock()

    def _begin_iteration(self, iteration: int) -> None:
        self.iteration = iteration
        self.done: set[int] = set()
        self.states: dict[int, State] = {}

    def _retire(self) -> None:
        for _, step in self.loop.retire:
            if step.kind == DRAIN:
                self.store.drain(step)
            else:
                self.store.free(step)

    def _store_new(self, layer: int, k: Tensor, v: Tensor) -> None:
        prefill = self.loop.stage == PREFILL
        if prefill and layer == 0:
            self.store.produce(self.loop.chunk)
        if not prefill and not self.stores_token:
            return
        cuts = self.meta.head_cuts
        for g in range(self.meta.num_groups):
            heads = slice(cuts[g], cuts[g + 1])
            cell = self.loop.chunk, self.node, g
            self.store.write(layer, cell, k[:, heads], v[:, heads], last=None if prefill else 1)

    def _run(self, both: Lanes) -> None:
        """Run both lanes of some rows in the current iteration: each lane starts its rows in list order."""
        compute = both[0][::-1] if self.iteration >= 0 else []
        nic = both[1][::-1]
        while compute or nic:
            moved = self._advance(nic)
            if compute and self._may_compute(compute[-1][0]):
                self._compute(*compute.pop())
            elif not moved and (compute or nic):
                self._wait(compute, nic)

    def _advance(self, nic: list[Row]) -> bool:
        moved = False
        while nic and self._may_start(*nic[-1]):
            row, step = nic.pop()
            self._start(row, step, self.iteration + step.ahead)
            self.done.add(row)
            moved = True
        return moved

    def _wait(self, compute: list[Row], nic: list[Row]) -> None:
        """Nothing can start: the calling thread is blocked on communication."""
        start = self.clock()
        self.transfers.wait_until(
            lambda: bool(compute and self._may_compute(compute[-1][0])) or bool(nic and self._may_start(*nic[-1]))
        )
        row, step = (compute or nic)[-1]
        self._note(step.kind, start, row=row, wait=True)

    # -- what a row waits for -------------------------------------------------------------------------------------

    def _may_compute(self, row: int) -> bool:
        return self._after_done(row) and self._all_here(row, self.iteration)

    def _may_start(self, row: int, step: Step) -> bool:
        layer = self.iteration + step.ahead
        if not 0 <= layer < self.meta.num_layers:
            return True
        if not self._after_done(row):
            return False
        if step.kind == RECV:
            return self._slot_free(row, step, layer) if step.payload == KV else self._buffer_free(row, layer)
        return self._all_here(row, layer)

    def _all_here(self, row: int, layer: int) -> bool:
        return all(self.transfers.is_here(recv, layer) for recv in self.loop.deps.get(row, ()))

    def _after_done(self, row: int) -> bool:
        """Own rows first: in decode, asking for an arrival waits for it."""
        return all(self._has_ended(after, step) for after, step in self.loop.waits.get(row, ()))

    def _has_ended(self, row: int, step: Step) -> bool:
        layer = self.iteration + step.ahead
        if not 0 <= layer < self.meta.num_layers:
            return True
        if step.kind == RECV:
            return self.transfers.is_here(row, layer)
        return row in self.done and (step.kind != SEND or self.transfers.is_sent(row, layer))

    def _buffer_free(self, row: int, layer: int) -> bool:
        """What the buffer held two layers ago has arrived and has been forwarded."""
        old = layer - 2
        readers = self.loop.readers.get(row, ())
        return old < 0 or (self.transfers.is_here(row, old) and all(self.transfers.is_sent(r, old) for r in readers))

    def _slot_free(self, row: int, step: Step, layer: int) -> bool:
        """All releases that stand before this receive have happened, and its own slot is free again."""
        for use, recvs in self.loop.releases.items():
            if use < row and not all(self._try_release(use, recv) for recv in recvs):
                return False
        old = layer - step.ahead - 1
        if step.hold == STREAM and row in self.store.slots and old >= 0:  # else the slot is new, or nothing was in it
            readers = self.loop.readers.get(row, ())
            return self.transfers.is_here(row, old) and all(self.transfers.is_sent(r, old) for r in readers)
        return True

    def _try_release(self, use: int, recv: int) -> bool:
        if recv not in self.store.slots:
            return True
        readers = self.loop.readers.get(recv, ())
        ready = use in self.done and all(r in self.done and self.transfers.is_sent(r, self.iteration) for r in readers)
        if ready:
            self.store.release(recv, self.transfers.steps[recv])
        return ready

    def _release_rest(self) -> None:
        """At the end of an iteration: the slots of one-layer streams, once what is forwarded from them has left.

        A stream that no row uses keeps its slot for the whole loop: nothing here has waited for its arrival.
        """
        used = {recv for recvs in self.loop.releases.values() for recv in recvs}
        for recv in used & self.store.slots.keys():
            readers = self.loop.readers.get(recv, ())
            if not all(self.transfers.is_sent(r, self.iteration) for r in readers):
                start = self.clock()
                self.transfers.wait_until(lambda rs=readers: all(self.transfers.is_sent(r, self.iteration) for r in rs))  # type: ignore[misc]
                self._note(SEND, start, row=recv, wait=True)
            self.store.release(recv, self.transfers.steps[recv])

    def _finish_transfers(self) -> None:
        start = self.clock()
        if self.transfers.finish():
            self._note(SEND, start, wait=True)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _start(self, row: int, step: Step, layer: int) -> None:
        if step.kind == MERGE:
            self._merge(row, step)
        elif not 0 <= layer < self.meta.num_layers:
            return
        elif step.kind == RECV:
            self.transfers.post_recv(row, step, layer)
        else:
            self.transfers.post_send(row, step, layer, self._payload(row, step))

    def _payload(self, row: int, step: Step) -> Tensor | None:
        if step.payload == KV:
            return None
        if step.payload == QUERY:
            return self._queries(row, step)[0].contiguous()
        source = next(r for r in self.loop.after[row] if r in self.states or r in self.loop.deps.get(row, ()))
        if source in self.states:
            return kernels.pack_state(self.states[source])
        return self.transfers.buffer(source, self.iteration)

    def _compute(self, row: int, step: Step) -> None:
        start = self.clock()
        if step.kind == ATTEND:
            self.states[row] = self._attend(row, step)
        elif step.kind == MERGE:
            self._merge(row, step)
        self.done.add(row)
        if step.kind != PRODUCE:
            self._note(step.kind, start, row=row)

    def _attend(self, row: int, step: Step) -> State:
        q, spans = self._queries(row, step)
        if row not in self.segments:
            self.segments[row] = self.store.segments(step, self.loop.chunk)
        group_heads, cuts = self.meta.group_heads, self.meta.head_cuts
        groups = self.sched.groups(step.h_lo, step.h_hi)
        parts = []
        for g in range(groups.start, groups.stop):
            heads = slice((cuts[g] - step.h_lo) * group_heads, (cuts[g + 1] - step.h_lo) * group_heads)
            parts.append(self._attend_group(q[:, heads], spans, [s for s in self.segments[row] if s.group == g]))
        return parts[0] if len(parts) == 1 else _join_heads(parts)

    def _attend_group(self, q: Tensor, spans: list[tuple[int, int]], segments: list[Segment]) -> State:
        views = [(self.store.rows(s, self.iteration), s) for s in segments]
        if self.loop.stage == DECODE:
            return kernels.attend_decode(q, [(kv[:, 0], kv[:, 1]) for kv, _ in views], self.scale)
        runs = [(kv[:, 0], kv[:, 1], -len(kv) if s.pos is None else s.pos) for kv, s in views]
        return kernels.attend_spans(q, spans, runs, self.scale)

    def _queries(self, row: int, step: Step) -> tuple[Tensor, list[tuple[int, int]]]:
        """The queries [T, heads, d] that a row attends or sends, and their spans: own ones, or those received."""
        group = self.meta.group_heads
        if step.q == self.node or step.stage == DECODE:
            return self.q[:, step.h_lo * group : step.h_hi * group], self.spans
        spans = self.sched.spans(step.chunk, step.q)
        recvs = [(r, self.transfers.steps[r]) for r in self.loop.deps[row]]
        recvs = [(r, s) for r, s in recvs if s.payload == QUERY]
        parts, lo = [], step.h_lo
        while lo < step.h_hi:
            recv, brought = next((r, s) for r, s in recvs if s.h_lo <= lo < s.h_hi)
            hi = min(brought.h_hi, step.h_hi)
            q = self.transfers.buffer(recv, self.iteration)
            parts.append(q[:, (lo - brought.h_lo) * group : (hi - brought.h_lo) * group])
            lo = hi
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1), spans

    def _merge(self, row: int, step: Step) -> None:
        inputs = [(self._state_of(r), self.transfers.steps[r]) for r in self.loop.after[row]]
        cuts, groups = self.meta.head_cuts, self.sched.groups(step.h_lo, step.h_hi)
        merged = [self._merge_heads(inputs, cuts[g], cuts[g + 1]) for g in range(groups.start, groups.stop)]
        self.states[row] = merged[0] if len(merged) == 1 else _join_heads(merged)
        if row == self.loop.final_merge:
            self.out.copy_(kernels.finish(self.states[row], self.out.dtype))

    def _merge_heads(self, inputs: list[tuple[State, Step]], h_lo: int, h_hi: int) -> State:
        group = self.meta.group_heads
        states = [_heads(state, i, h_lo, h_hi, group) for state, i in inputs if i.h_lo <= h_lo < i.h_hi]
        num_rows = len(inputs[0][0].lse)
        return kernels.merge_states(
            states or [kernels.empty_state(num_rows, (h_hi - h_lo) * group, self.meta.head_dim)]
        )

    def _state_of(self, row: int) -> State:
        if self.transfers.steps[row].kind == RECV:
            return kernels.unpack_state(self.transfers.buffer(row, self.iteration))
        return self.states[row]

    # -- trace ----------------------------------------------------------------------------------------------------

    def _note_dense(self, layer: int) -> None:
        """The dense work since the last attention, up to this layer's (layer L: what follows the last)."""
        self._note(PRODUCE, self.dense_from, layer=layer)

    def _note(self, kind: int, start: float, *, row: int = -1, layer: int | None = None, wait: bool = False) -> None:
        self.trace.event(
            kind=kind, lane=COMPUTE, stage=self.loop.stage, node=self.node, t_start=start, t_end=self.clock(), row=row,
            chunk=self.loop.chunk, layer=self.iteration if layer is None else layer, wait=wait,
        )  # fmt: skip

    def _note_memory(self) -> None:
        use = self.pool.in_use_bytes
        self.trace.memory(node=self.node, t=self.clock(), bytes_in_use=use, chunk=self.loop.chunk)


def _heads(state: State, step: Step, h_lo: int, h_hi: int, group: int) -> State:
    if (step.h_lo, step.h_hi) == (h_lo, h_hi):
        return state
    heads = slice((h_lo - step.h_lo) * group, (h_hi - step.h_lo) * group)
    return State(lse=state.lse[:, heads], out=state.out[:, heads])


def _join_heads(states: list[State]) -> State:
    return State(lse=torch.cat([s.lse for s in states], 1), out=torch.cat([s.out for s in states], 1))
