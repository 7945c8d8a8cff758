"""A node's replica directory in hardware, asked on behalf of rows: an entry for each 64 tokens and head group.

An entry stands for the copy of all layers and moves as layer 0 does; a copy in layer slots has an entry for each layer.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mcf.errors import RunError
from mcf.rtl.board import Board
from mcf.rtl.kv_ops import KvCode, KvOp
from mcf.rtl.room import Cell, blocks_of_cell, kv_id
from mcf.schedule.schedule import Schedule

Change = tuple[int, int, int, int, int]
_ACCEPTED = (KvCode.OK, KvCode.HELD, KvCode.FREED)


class _Asked(NamedTuple):
    op: KvOp
    cell: Cell
    layer: int
    position: int
    block: int
    is_last: bool
    row: int


class Directory:
    """What one node asked and was answered; `changes` are (position, chunk, maker, group, state) of layer 0."""

    def __init__(self, board: Board, sched: Schedule, node: int, done: Callable[[int], None]) -> None:
        self.board, self.sched, self.node, self.done = board, sched, node, done
        self.asked: deque[_Asked] = deque()
        self.changes: list[Change] = []
        self.left: dict[int, int] = {}  # row of a free -> entries that are not gone yet
        self.held: dict[tuple[int, int], int] = {}  # (block, layer) that waits for its readers -> the row that frees it

    def ask(self, op: KvOp, cells: list[Cell], *, position: int, layer: int = 0, row: int = -1) -> None:
        """Put one operation on blocks to the hardware. `row`: of a free, to be told of when all are gone."""
        for cell in cells:
            blocks = blocks_of_cell(self.sched, cell)
            if row >= 0:
                self.left[row] = self.left.get(row, 0) + len(blocks)
            for block in blocks:
                owner = int(self.sched.owner[cell]) == self.node and op in (KvOp.PRODUCE, KvOp.RECV)
                self.board.ask_directory(self.node, op, kv_id(self.sched, cell[2], layer, block), owner=owner)
                self.asked.append(_Asked(op, cell, layer, position, block, block == blocks[-1], row))

    def collect(self) -> int:
        """Take in answers; returns how many. Raises RunError for a refusal."""
        count = 0
        for code, state in self.board.answers(self.node):
            count += 1
            asked = self.asked.popleft()
            if code not in _ACCEPTED:
                raise RunError(
                    f"the replica directory of node {self.node} refused to {asked.op.name.lower()} block {asked.cell} "
                    f"in layer {asked.layer} ({code.name}): expected a legal step with room in the directory"
                )
            self._note(asked, code, state)
        return count

    def _note(self, asked: _Asked, code: KvCode, state: int) -> None:
        if asked.row >= 0 and code is not KvCode.HELD:
            self._gone(asked.row)
        if code is KvCode.HELD:
            self.held[asked.block, asked.layer] = asked.row
        if code is KvCode.FREED and (row := self.held.pop((asked.block, asked.layer), -1)) >= 0:
            self._gone(row)
        if asked.layer == 0 and asked.is_last and asked.op not in (KvOp.READ, KvOp.DONE, KvOp.LOOK, KvOp.FREE):
            self.changes.append((asked.position, *asked.cell, state))

    def _gone(self, row: int) -> None:
        self.left[row] -= 1
        if not self.left[row]:
            self.done(row)
