"""Rows of attention at work on a whole node: batches of commands, and the records that come back to the processor.

A batch's records leave by one descriptor, as packets from the node to itself; more batches are given as records come,
so that the ring of commands never runs full. Every record that leaves the compute half is compared with the golden
model's, whether it comes back or goes to reduction units.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from mcf.errors import RunError
from mcf.rtl.board import Board, Packet
from mcf.rtl.descriptor import STATE_BIT, pack_descriptor
from mcf.rtl.golden.state import EMPTY_EXPONENT, BlockState, from_beats
from mcf.rtl.merges import RECORD_BEATS
from mcf.rtl.rows import Batch
from mcf.schedule.wire import FIELDS, Flags, Op

MOST_FLIGHTS = 2  # as batches have slots for; their commands fit the ring
NEXT_RECORD = 1 << STATE_BIT  # the address of whichever record leaves next
Key = tuple[int, int]  # row, tick


@dataclass(kw_only=True, eq=False)
class RowWork:
    """A row whose states come back: its batches, the states [T, Hq] so far, the cycle in which it started."""

    key: Key
    work: Iterator[Batch]
    blocks: BlockState
    left: int
    start: int


End = Callable[[RowWork, int], None]


@dataclass(kw_only=True, eq=False)
class _Flight:
    row: RowWork
    batch: Batch
    number: int
    found: list[list[int]] = field(default_factory=list)


class Attending:
    """One node's. `route` leads from the node to itself; `end(row, cycle)` is told of a row that has ended."""

    def __init__(self, board: Board, node: int, *, group: int, route: int, end: End) -> None:
        self.board, self.node, self.group, self.route, self.end = board, node, group, route, end
        self.rows: deque[RowWork] = deque()
        self.flights: deque[_Flight] = deque()
        self.expected: deque[tuple[Key, list[int]]] = deque()
        self.num_batches = self.num_exact = 0

    @property
    def is_busy(self) -> bool:
        """Say whether records have not left."""
        return bool(self.rows or self.flights or self.expected)

    def start(self, row: RowWork) -> None:
        """Take on a row, behind those that are there."""
        self.rows.append(row)
        self.go_on()

    def go_on(self) -> None:
        """Give as many batches as there is room for."""
        while self.rows and len(self.flights) < MOST_FLIGHTS:
            batch = next(self.rows[0].work, None)
            if batch is None:
                self.rows.popleft()
                continue
            self.flights.append(_Flight(row=self.rows[0], batch=batch, number=self.num_batches % FIELDS["block"].limit))
            self.num_batches += 1
            self.board.post(self.node, [self._descriptor(self.flights[-1])])
            self.give(self.rows[0].key, batch)

    def give(self, key: Key, batch: Batch) -> None:
        """Give a batch's commands; whoever does has seen to a descriptor for each of its records, in order."""
        self.expected += [(key, record) for record in batch.records]
        self.board.command(self.node, batch.commands)

    def _descriptor(self, flight: _Flight) -> int:
        header: dict[str, int] = {
            "op": Op.STATE,
            "flags": Flags.LAST,
            "src": self.node,
            "dst_node": self.node,
            "dst_root": self.node,
            "route_id": self.route,
            "block": flight.number,
            "len": RECORD_BEATS,
        }
        repeat = len(flight.batch.records) - 1
        return pack_descriptor(header, address=NEXT_RECORD, beats=RECORD_BEATS, repeat=repeat, step_tag=1)

    # --- what leaves, and what comes back ---

    def watch(self) -> int:
        """Compare what has left the compute half with the golden model; returns how many records."""
        count = 0
        for cycle, beats in self.board.records(self.node):
            count += 1
            if not self.expected or self.expected[0][1] != beats:
                row = f"row {self.expected[0][0][0]}" if self.expected else "no row"
                raise RunError(
                    f"node {self.node} made another state for {row} than the golden model, by cycle {cycle:,}: "
                    "expected the same bits"
                )
            self.expected.popleft()
        self.num_exact += count
        return count

    def receive(self, header: dict[str, int], packet: Packet) -> None:
        """Take in a record that came back."""
        flight = self.flights[0] if self.flights else None
        if flight is None or (header["block"], header["tag"]) != (flight.number, len(flight.found)):
            raise RunError(f"node {self.node} received a packet that it had not asked for: {header}")
        flight.found.append(packet.beats)
        if len(flight.found) < len(flight.batch.records):
            return
        self.flights.popleft()
        self._keep(flight)
        if not flight.row.left:
            self.end(flight.row, packet.cycle)
        self.go_on()

    def _keep(self, flight: _Flight) -> None:
        row, group = flight.row, self.group
        head_dim = row.blocks.out.shape[-1]
        for number, record in enumerate(flight.found):
            token, head = flight.batch.tokens[number // group], flight.batch.head * group + number % group
            put_block(row.blocks, (token, head), from_beats(record, head_dim)[0])
        row.left -= len(flight.found)


def no_blocks(num_rows: int, num_heads: int, head_dim: int) -> BlockState:
    """States of rows that have seen nothing, to be filled in."""
    shape = (num_rows, num_heads)
    zero = np.zeros(shape, np.int64)
    out = np.zeros((*shape, head_dim), np.int64)
    return BlockState(exponent=zero + EMPTY_EXPONENT, sum_=zero.copy(), out=out, count=zero + 1)


def put_block(blocks: BlockState, at: tuple[int, int], block: BlockState) -> None:
    """Fill in one state."""
    blocks.exponent[at], blocks.sum_[at], blocks.out[at] = block.exponent, block.sum_, block.out
    blocks.count[at] = block.count
