"""One node's memory in list order, across lanes: what a row takes or gives back, and when (semantics 3 and 4)."""

from mcf.ref.store import Store
from mcf.ref.world import World
from mcf.schedule.program import GIVE, TAKE, MemoryEvent, Row
from mcf.schedule.steps import FREE, KEEP, PRODUCE, RECV


class Ledger:
    """Walks the node's memory events; `taken` are the (row, iteration) whose memory is there."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.program, self.store = world, world.program, store
        self.chain = world.program.nodes[store.node].chain
        self.first_row = world.program.sched.node_rows(store.node).start
        self.taken: set[tuple[int, int]] = set()
        self.at = 0

    @property
    def has_ended(self) -> bool:
        """Say whether every memory event has happened."""
        return self.at == len(self.chain)

    def position(self, row: int) -> int:
        """Place of a row in its node's list."""
        return row - self.first_row

    def step(self) -> bool:
        """Take or give back the memory of the next event; False when it has to wait."""
        if self.has_ended or not self._can_move(self.chain[self.at]):
            return False
        event = self.chain[self.at]
        self._move(event)
        self.at += 1
        self.world.sample(self.store.node, self.store.bytes, self.program.rows[event.row].chunk)
        return True

    def used(self, recv: int, tick: int) -> bool:
        """Say whether one layer's copy of a receive has arrived and served all its users."""
        return all(self.world.ended[row][tick] for row in self._recv_and_users(recv))

    def release(self, recv: int, tick: int) -> None:
        """Forget one layer's copy of a stream receive."""
        last, layer = self.program.last_use[recv], self.world.layer(tick)
        at = self.position(last if last >= 0 else self.program.group_end[recv])
        for cell in self.program.cells[recv]:
            self.store.change(cell, layer, "release", at)
            self.store.forget(cell, layer)

    def _recv_and_users(self, recv: int) -> tuple[int, ...]:
        return recv, *self.program.users.get(recv, ())

    def _can_move(self, event: MemoryEvent) -> bool:
        if event.kind == TAKE:
            return True
        if self.program.rows[event.row].kind == FREE:
            return self.world.has_ended(event.row)
        if self.program.is_loop_slot(event.row):
            return all(self.world.has_ended(row) for row in self._recv_and_users(event.row))
        return self.used(event.row, event.it)

    def _move(self, event: MemoryEvent) -> None:
        row = self.program.rows[event.row]
        if event.kind == TAKE:
            self.store.take(self._size(event.row, row))
            self.taken.add((event.row, event.it))
            return
        assert event.kind == GIVE
        self.store.give(self._size(event.row, row))
        for tick in self._ticks_left(event, row):
            self.release(event.row, tick)

    def _ticks_left(self, event: MemoryEvent, row: Row) -> range:
        """Payload ticks whose copies still stand when the slots are given back."""
        if self.program.is_loop_slot(event.row):
            ticks = self.program.ticks(row)
            return range(max(ticks - row.ahead - 1, 0), ticks)
        return range(event.it, event.it + 1) if row.kind == RECV else range(0)

    def _size(self, index: int, row: Row) -> int:
        cells = self.program.cells[index]
        if row.kind == PRODUCE:
            return self.store.grow_own(row.chunk)
        if row.kind == FREE or row.hold == KEEP:
            return self.store.copy_bytes(cells)
        tokens = self.program.sched.tokens_in(row.c_lo, row.c_hi, row.m_lo, row.m_hi)
        return self.store.page_bytes(tokens, row.h_hi - row.h_lo) * (row.ahead + 1)
