"""How far a program's rows have come, and what they wait for by the schedule alone (semantics 2 to 5).

What a row needs to hold (blocks, queries, states) is for the executor that has them to say.
"""

from mcf.schedule.program import TAKE, Instance, MemoryEvent, Program
from mcf.schedule.steps import DECODE, FREE, KEEP, PRODUCE, RECV, Step


class Progress:
    """Which runs of which rows have ended, on all nodes: `ended[row][tick]`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ended = [bytearray(program.ticks(row)) for row in program.rows]

    def end(self, row: int, tick: int) -> None:
        """Record that one run of a row has ended."""
        assert not self.ended[row][tick], (row, tick)
        self.ended[row][tick] = 1

    def has_ended(self, row: int) -> bool:
        """Say whether every run of a row has ended."""
        return all(self.ended[row])

    def is_used(self, recv: int, tick: int) -> bool:
        """Say whether one layer's copy of a receive has arrived and served all its users."""
        return all(self.ended[row][tick] for row in self.program.recv_and_users(recv))

    def after_done(self, inst: Instance) -> bool:
        """Say whether the rows that an instance stands after have ended, those of its loop for the same iteration."""
        return all(self._is_behind(target, inst) for target in self.program.after[inst.row])

    def _is_behind(self, target: int, inst: Instance) -> bool:
        other = self.program.rows[target]
        if not self.program.same_group(self.program.rows[inst.row], other):
            return self.has_ended(target)
        tick = inst.it + other.ahead
        return not 0 <= tick < self.program.ticks(other) or bool(self.ended[target][tick])

    def layer_before_done(self, inst: Instance) -> bool:
        """Say whether the layer before a produce's has its attention output."""
        row = self.program.rows[inst.row]
        merge = self.program.final_merge.get((row.node, row.chunk))
        return inst.it == 0 or merge is None or bool(self.ended[merge][inst.it - 1])


class NodeProgress:
    """One node's memory in list order, across lanes; `taken` are the (row, iteration) whose memory is there."""

    def __init__(self, progress: Progress, node: int) -> None:
        self.progress, self.program = progress, progress.program
        self.chain = self.program.nodes[node].chain
        self.taken: set[tuple[int, int]] = set()
        self.at = 0

    @property
    def has_ended(self) -> bool:
        """Say whether every memory event has happened."""
        return self.at == len(self.chain)

    def blocked(self, inst: Instance) -> str:
        """What an instance waits for, whatever its node holds; "" for nothing."""
        row = self.program.rows[inst.row]
        if not self.progress.after_done(inst):
            return "the rows that it stands after"
        if row.kind == PRODUCE:
            return self._wait_produce(row, inst)
        return self._wait_slot(row, inst) if row.is_kv_recv else ""

    def _wait_produce(self, row: Step, inst: Instance) -> str:
        if not self.progress.layer_before_done(inst):
            return "the layer before"
        return "" if row.stage == DECODE or (inst.row, 0) in self.taken else "memory"

    def _wait_slot(self, row: Step, inst: Instance) -> str:
        loop_slot = self.program.is_loop_slot(inst.row)
        if (inst.row, -row.ahead if row.hold == KEEP or loop_slot else inst.it) not in self.taken:
            return "memory"
        return "a layer slot" if loop_slot and inst.it > 0 and not self.progress.is_used(inst.row, inst.it - 1) else ""

    def step(self) -> MemoryEvent | None:
        """Go past the next memory event and return it, for the executor to carry out; None when it has to wait."""
        if self.has_ended or not self._can_move(self.chain[self.at]):
            return None
        event = self.chain[self.at]
        self.at += 1
        if event.kind == TAKE:
            self.taken.add((event.row, event.it))
        return event

    def _can_move(self, event: MemoryEvent) -> bool:
        if event.kind == TAKE:
            return True
        if self.program.rows[event.row].kind == FREE:
            return self.progress.has_ended(event.row)
        if self.program.is_loop_slot(event.row):
            return all(self.progress.has_ended(row) for row in self.program.recv_and_users(event.row))
        return self.progress.is_used(event.row, event.it)

    def ticks_left(self, event: MemoryEvent) -> range:
        """Payload ticks whose copies are released when an event gives slots back."""
        row = self.program.rows[event.row]
        if event.kind == TAKE or row.kind != RECV:
            return range(0)
        if self.program.is_loop_slot(event.row):
            ticks = self.program.ticks(row)
            return range(max(ticks - row.ahead - 1, 0), ticks)
        return range(event.it, event.it + 1)
