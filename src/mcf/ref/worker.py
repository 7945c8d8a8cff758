"""One node at work: what each kind of row must find there, and what it does. It obeys and never chooses."""

from collections.abc import Callable

import numpy as np

from mcf.attn import PartialState, attend, empty, finish, merge
from mcf.ref.ledger import Ledger
from mcf.ref.store import Store
from mcf.ref.world import World
from mcf.schedule.program import Instance
from mcf.schedule.progress import NodeProgress
from mcf.schedule.steps import ALL, ATTEND, DECODE, DRAIN, FREE, KEEP, KV, MERGE, PRODUCE, QUERY, RECV, SEND, Step
from mcf.trace.outcome import Array


class Worker:
    """The rows of one node: `blocked` says what an instance waits for, `start` runs it."""

    def __init__(self, world: World, node: int) -> None:
        self.world, self.program, self.node = world, world.program, node
        self.tensors = world.tensors
        self.store = Store(world.program.sched, node)
        self.progress = NodeProgress(world.progress, node)
        self.ledger = Ledger(world, self.store, self.progress)
        self._waits: dict[int, Callable[[Step, Instance], str]] = {
            SEND: self._wait_send,
            ATTEND: self._wait_attend,
            DRAIN: self._wait_retire,
            FREE: self._wait_retire,
        }
        self._deeds: dict[int, Callable[[Step, Instance], None]] = {
            PRODUCE: self._produce,
            SEND: self._send,
            RECV: self._recv,
            ATTEND: self._attend,
            MERGE: self._merge,
            DRAIN: self._drain,
            FREE: self._free,
        }

    # --- what a row waits for ---

    def blocked(self, inst: Instance) -> str:
        """What the instance waits for; "" when it can start."""
        row = self.program.rows[inst.row]
        return self.progress.blocked(inst) or (self._waits[row.kind](row, inst) if row.kind in self._waits else "")

    def start(self, inst: Instance) -> None:
        """Run an instance; sends and receives end later, when the payload has moved."""
        row = self.program.rows[inst.row]
        self._deeds[row.kind](row, inst)
        if row.kind not in (SEND, RECV):
            self.world.end(inst.row, inst.it + row.ahead)

    def _wait_send(self, row: Step, inst: Instance) -> str:
        if row.payload == KV:
            return self._wait_blocks(inst, row)
        if row.payload == QUERY:
            return self._wait_queries(inst, row)
        return ""

    def _wait_attend(self, row: Step, inst: Instance) -> str:
        return self._wait_queries(inst, row) or self._wait_blocks(inst, row)

    def _wait_queries(self, inst: Instance, row: Step) -> str:
        key = (row.chunk, row.q, inst.it)
        if key in self.store.queries and not self._missing_heads(row, self.store.queries[key]):
            return ""
        return f"the queries of node {row.q}"

    def _missing_heads(self, row: Step, queries: Array) -> bool:
        return bool(np.isnan(queries[:, self._q_heads(row)]).any())

    def _wait_blocks(self, inst: Instance, row: Step) -> str:
        layer = self.program.layer(inst.it + row.ahead)
        return "" if self.store.readable(self.program.cells[inst.row], layer) else "blocks that it does not hold"

    def _wait_retire(self, row: Step, inst: Instance) -> str:
        done = all(map(self.world.progress.has_ended, self.program.must_end(inst.row)))
        return "" if done else "rows that bring or use its blocks"

    # --- what a row does ---

    def _q_heads(self, row: Step) -> slice:
        size = self.program.sched.meta.group_heads
        return slice(row.h_lo * size, row.h_hi * size)

    def _produce(self, row: Step, inst: Instance) -> None:
        layer, positions = self.program.layer(inst.it), self.program.positions(row.chunk, self.node, inst.it)
        kv = np.stack([self.tensors.k[layer, positions], self.tensors.v[layer, positions]])
        query = ALL if row.stage == DECODE else self.node
        self.store.queries[row.chunk, query, inst.it] = self.tensors.q[layer, positions].copy()
        if row.stage == DECODE:
            token = inst.it // self.program.sched.meta.num_layers
            if self.program.sched.meta.generated_home(token) == self.node:
                self.store.append(layer, token, kv[:, 0])
            return
        cuts = self.program.sched.meta.head_cuts
        for cell in self.program.cells[inst.row]:
            self.store.change(cell, layer, "produce", self.program.place(inst.row))
            self.store.reserve(cell, layer)
            self.store.fill(cell, layer, kv[:, :, cuts[cell[2]] : cuts[cell[2] + 1]])

    def _send(self, row: Step, inst: Instance) -> None:
        self.world.launch(inst)

    def _recv(self, row: Step, inst: Instance) -> None:
        tick = inst.it + row.ahead
        if row.payload == KV:
            if self.program.is_loop_slot(inst.row) and inst.it > 0:
                self.ledger.release(inst.row, inst.it - 1)
            for cell in self.program.cells[inst.row]:
                if row.hold == KEEP:
                    self.store.change(cell, self.program.layer(tick), "recv", self.program.place(inst.row))
                self.store.reserve(cell, self.program.layer(tick))
        self.world.posted.add((inst.row, tick))

    def _attend(self, row: Step, inst: Instance) -> None:
        layer, sched = self.program.layer(inst.it), self.program.sched
        q_pos = self.program.positions(row.chunk, row.q, inst.it)
        heads = self._q_heads(row)
        queries = self.store.queries[row.chunk, row.q, inst.it][:, heads]
        cells = self.program.cells[inst.row]
        parts = [(self.store.gather(cells, layer), self.world.cell_positions(cells))] if cells else []
        if row.c_hi > sched.meta.num_chunks and row.m_lo <= self.node < row.m_hi:
            parts.append(self.store.tail(layer, row.h_lo, row.h_hi))
        kv = np.concatenate([p[0] for p in parts], axis=1)
        k_pos = np.concatenate([p[1] for p in parts])
        state = attend(queries, kv[0], kv[1], q_pos, k_pos, sched.meta.head_dim**-0.5)
        self.store.states[inst.row, inst.it] = self._pad(state, heads)

    def _pad(self, state: PartialState, heads: slice) -> PartialState:
        """Spread a state of some heads over all heads; the others have seen nothing."""
        meta = self.program.sched.meta
        out = empty(len(state.max_), meta.num_q_heads, meta.head_dim)
        out.max_[:, heads], out.sum_[:, heads], out.out[:, heads] = state.max_, state.sum_, state.out
        return out

    def _merge(self, row: Step, inst: Instance) -> None:
        keys = [(target, inst.it) for target in self.program.after[inst.row]]
        state = merge([self.store.states[key] for key in keys if key in self.store.states])
        self.store.states[inst.row, inst.it] = state
        if self.program.final_merge.get((self.node, row.chunk)) == inst.row:
            self.world.write_out(row, inst.it, finish(state))

    def _drain(self, row: Step, inst: Instance) -> None:
        self._change_all(inst.row, "drain")

    def _free(self, row: Step, inst: Instance) -> None:
        self._change_all(inst.row, "free")
        for cell in self.program.cells[inst.row]:
            for layer in range(self.program.sched.meta.num_layers):
                self.store.forget(cell, layer)

    def _change_all(self, row: int, event: str) -> None:
        for cell in self.program.cells[row]:
            for layer in range(self.program.sched.meta.num_layers):
                self.store.change(cell, layer, event, self.program.place(row))

    # --- payloads ---

    def payload(self, inst: Instance) -> tuple[Array, ...]:
        """The arrays of a send, read from this node's own stores."""
        row = self.program.rows[inst.row]
        tick = inst.it + row.ahead
        if row.payload == KV:
            return tuple(self.store.blocks[(*c, self.program.layer(tick))] for c in self.program.cells[inst.row])
        heads = self._q_heads(row)
        if row.payload == QUERY:
            return (self.store.queries[row.chunk, row.q, tick][:, heads],)
        source = next(t for t in self.program.after[inst.row] if (t, inst.it) in self.store.states)
        state = self.store.states[source, inst.it]
        return state.max_[:, heads], state.sum_[:, heads], state.out[:, heads]

    def arrive(self, recv: int, tick: int, arrays: tuple[Array, ...]) -> None:
        """Take in the payload of a posted receive."""
        row = self.program.rows[recv]
        if row.payload == KV:
            event = "arrive" if row.hold == KEEP else "stream"
            for cell, values in zip(self.program.cells[recv], arrays, strict=True):
                self.store.fill(cell, self.program.layer(tick), values)
                self.store.change(cell, self.program.layer(tick), event, self.program.place(recv))
        elif row.payload == QUERY:
            meta = self.program.sched.meta
            shape = (len(arrays[0]), meta.num_q_heads, meta.head_dim)
            into = self.store.queries.setdefault((row.chunk, row.q, tick), np.full(shape, np.nan))
            into[:, self._q_heads(row)] = arrays[0]
        else:
            state = PartialState(max_=arrays[0].copy(), sum_=arrays[1].copy(), out=arrays[2].copy())
            self.store.states[recv, tick] = self._pad(state, self._q_heads(row))
