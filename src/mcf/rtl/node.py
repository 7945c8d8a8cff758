"""One node of a run: its lanes, what each row must find there and does, what its network half sends and receives."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mcf.attn import finish, merge
from mcf.rtl.directory import Directory
from mcf.rtl.kv_ops import KvOp
from mcf.rtl.receiving import Receiving
from mcf.rtl.sending import Sending
from mcf.rtl.slots import Slots
from mcf.schedule.kv import ABSENT
from mcf.schedule.program import Instance, MemoryEvent
from mcf.schedule.progress import NodeProgress
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    DECODE,
    DRAIN,
    FREE,
    KV,
    MERGE,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STATE,
    Step,
)

if TYPE_CHECKING:
    from mcf.rtl.run import Run


class Node:
    """The rows of one node: `blocked` says what an instance waits for, `start` runs it."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run, self.number, self.program, self.low = run, number, run.program, run.low
        self.compute = run.compute_of(number)
        self.slots, self.sending, self.receiving = Slots(run, number), Sending(self), Receiving(self)
        self.directory = Directory(run.board, run.low.sched, number, self._freed)
        self.progress = NodeProgress(run.progress, number)
        self.heads = [0, 0]
        self.kept: set[tuple[int, int, int]] = set()
        self._waits: dict[int, Callable[[Step, Instance], str]] = {
            SEND: self._wait_send,
            RECV: self._wait_recv,
            ATTEND: self._wait_attend,
            MERGE: self._wait_merge,
            DRAIN: self._wait_retire,
            FREE: self._wait_retire,
        }
        self._deeds: dict[int, Callable[[Step, Instance], None]] = {
            PRODUCE: self._produce,
            SEND: self.sending.start,
            RECV: self.receiving.post,
            ATTEND: self._attend,
            MERGE: self._merge,
            DRAIN: self._drain,
            FREE: self._free,
        }

    # --- what a row waits for: "" when it can start ---

    def blocked(self, inst: Instance) -> str:
        """What the instance waits for."""
        row = self.program.rows[inst.row]
        return self.progress.blocked(inst) or (self._waits[row.kind](row, inst) if row.kind in self._waits else "")

    def start(self, inst: Instance) -> None:
        """Run an instance; sends, receives, attends and frees end in their own time."""
        row = self.program.rows[inst.row]
        self.run.num_started[inst.row] += 1
        self._deeds[row.kind](row, inst)
        if row.kind not in (SEND, RECV, ATTEND, FREE):
            self.run.end(inst.row, inst.it + row.ahead)

    def _wait_send(self, row: Step, inst: Instance) -> str:
        if row.payload == KV:
            return self._wait_blocks(inst, row)
        return self._wait_queries(inst, row) if row.payload == QUERY else ""

    def _wait_recv(self, row: Step, inst: Instance) -> str:
        return self.slots.blocked(inst.it) if row.payload == STATE and row.stage == DECODE else ""

    def _wait_attend(self, row: Step, inst: Instance) -> str:
        if row.stage == DECODE and (reason := self.slots.blocked(inst.it)):
            return reason
        return self._wait_queries(inst, row) or self._wait_blocks(inst, row)

    def _wait_queries(self, inst: Instance, row: Step) -> str:
        return "" if self.compute.has_queries(row, inst.it) else f"the queries of node {row.q}"

    def _wait_blocks(self, inst: Instance, row: Step) -> str:
        layer = self.program.layer(inst.it + row.ahead)
        return "" if self.compute.has_blocks(self.program.cells[inst.row], layer) else "blocks that it does not hold"

    def _wait_merge(self, row: Step, inst: Instance) -> str:
        return "its merged states" if self.slots.does(inst.row) and not self.slots.is_complete(inst.it) else ""

    def _wait_retire(self, row: Step, inst: Instance) -> str:
        """Readers under way hold the entries: the directory waits for them, we only for those not yet under way."""
        done = all(map(self.run.all_started, self.program.readers[inst.row]))
        if row.kind == DRAIN:
            done = done and all(map(self.run.progress.has_ended, self.program.bringers[inst.row]))
        return "" if done else "rows that bring or use its blocks"

    # --- what a row does ---

    def _produce(self, row: Step, inst: Instance) -> None:
        meta, layer = self.low.sched.meta, self.program.layer(inst.it)
        positions = self.program.positions(row.chunk, self.number, inst.it)
        q, k, v = self.run.tensors
        query = ALL if row.stage == DECODE else self.number
        self.compute.ask(row.chunk, query, inst.it, q[layer, positions])
        if row.stage == DECODE:
            if meta.generated_home(inst.it // meta.num_layers) == self.number:
                self.compute.keep(layer, positions, k[layer, positions], v[layer, positions])
            return
        self.compute.keep(layer, positions, k[layer, positions], v[layer, positions])
        cells = self.program.cells[inst.row]
        self.compute.held |= {(cell, layer) for cell in cells}
        if layer == 0:
            self.kept |= set(cells)
            self.directory.ask(KvOp.PRODUCE, cells, position=self.program.place(inst.row))

    def _attend(self, row: Step, inst: Instance) -> None:
        is_merged = row.stage == DECODE and self.slots.takes(inst.row)
        if is_merged:
            self.slots.arm(inst.it)
        self.compute.attend(inst.row, inst.it)
        if is_merged and not self._joins(inst.row):
            self.sending.send_state(inst.row, inst.it, inst.row, ())

    def _joins(self, row: int) -> bool:
        """Say whether a state reaches this node's units together with those of others."""
        return any(row in self.program.after[send] for send in self.low.joined)

    def _merge(self, row: Step, inst: Instance) -> None:
        if self.slots.does(inst.row):
            state = self.slots.take(inst.it)
        else:
            keys = [(target, inst.it) for target in self.program.after[inst.row]]
            state = merge([self.compute.states[key] for key in keys if key in self.compute.states])
        self.compute.states[inst.row, inst.it] = state
        if self.program.final_merge.get((self.number, row.chunk)) == inst.row:
            self.run.recording.write_out(row, inst.it, finish(state))

    def _drain(self, row: Step, inst: Instance) -> None:
        self.directory.ask(KvOp.DRAIN, self.program.cells[inst.row], position=self.program.place(inst.row))

    def _free(self, row: Step, inst: Instance) -> None:
        cells = self.program.cells[inst.row]
        self.directory.ask(KvOp.FREE, cells, position=self.program.place(inst.row), row=inst.row)
        if not cells:
            self.run.end(inst.row, 0)

    def _freed(self, row: int) -> None:
        cells = self.program.cells[row]
        self.kept -= set(cells)
        self.compute.forget(cells, range(self.low.sched.meta.num_layers))
        self.directory.changes += [(self.program.place(row), *cell, ABSENT) for cell in cells]
        self.run.end(row, 0)

    # --- turns ---

    def run_lane(self, lane: int) -> int:
        """Start rows of one lane in list order until one is blocked; returns how many started."""
        todo, done = self.program.nodes[self.number].lanes[lane], 0
        while self.heads[lane] < len(todo) and not self.blocked(todo[self.heads[lane]]):
            self.start(todo[self.heads[lane]])
            self.heads[lane] += 1
            done += 1
        return done

    def next_row(self, lane: int) -> Instance | None:
        """The instance at which a lane stands; None at its end."""
        todo = self.program.nodes[self.number].lanes[lane]
        return todo[self.heads[lane]] if self.heads[lane] < len(todo) else None

    def run_memory(self) -> int:
        """Take and give back memory in list order, across lanes, until something has to wait; returns how often."""
        done = 0
        while (event := self.progress.step()) is not None:
            self._move(event)
            done += 1
        return done

    def _move(self, event: MemoryEvent) -> None:
        self.compute.move(event)
        for tick in self.progress.ticks_left(event):
            self.release(event.row, tick)
        chunk = self.program.rows[event.row].chunk
        self.run.recording.sample(self.run.board.cycle, self.number, self.compute.bytes, chunk)

    # --- layer slots ---

    def release(self, recv: int, tick: int) -> None:
        """Give up one layer's copy of a stream receive."""
        layer, at = self.program.layer(tick), self.program.release_place(recv)
        self.directory.ask(KvOp.RELEASE, self.program.cells[recv], position=at, layer=layer)
        self.compute.forget(self.program.cells[recv], [layer])


__all__ = ["Node"]
