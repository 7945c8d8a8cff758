"""One node's memory in list order, across lanes: what a row takes or gives back (semantics 3 and 4)."""

from mcf.ref.store import Store
from mcf.ref.world import World
from mcf.schedule.program import TAKE, MemoryEvent
from mcf.schedule.progress import NodeProgress
from mcf.schedule.steps import FREE, KEEP, PRODUCE, Step


class Ledger:
    """Carries out the node's memory events in the store, as its progress lets them happen."""

    def __init__(self, world: World, store: Store, progress: NodeProgress) -> None:
        self.world, self.program, self.store, self.progress = world, world.program, store, progress

    def step(self) -> bool:
        """Take or give back the memory of the next event; False when it has to wait."""
        event = self.progress.step()
        if event is None:
            return False
        self._move(event)
        self.world.sample(self.store.node, self.store.bytes, self.program.rows[event.row].chunk)
        return True

    def release(self, recv: int, tick: int) -> None:
        """Forget one layer's copy of a stream receive."""
        layer, at = self.program.layer(tick), self.program.release_place(recv)
        for cell in self.program.cells[recv]:
            self.store.change(cell, layer, "release", at)
            self.store.forget(cell, layer)

    def _move(self, event: MemoryEvent) -> None:
        size = self._size(event.row, self.program.rows[event.row])
        if event.kind == TAKE:
            self.store.take(size)
        else:
            self.store.give(size)
        for tick in self.progress.ticks_left(event):
            self.release(event.row, tick)

    def _size(self, index: int, row: Step) -> int:
        cells = self.program.cells[index]
        if row.kind == PRODUCE:
            return self.store.grow_own(row.chunk)
        if row.kind == FREE or row.hold == KEEP:
            return self.store.copy_bytes(cells)
        tokens = self.program.sched.tokens_in(row.c_lo, row.c_hi, row.m_lo, row.m_hi)
        return self.store.page_bytes(tokens, row.h_hi - row.h_lo) * (row.ahead + 1)
