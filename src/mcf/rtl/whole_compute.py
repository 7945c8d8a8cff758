"""A node of a run whose compute half is hardware: pages in its memory, commands through its ring, records that leave.

What the node's processor does beside it is software that takes no time here: it quantises what the node makes, writes
pages that arrive into memory, copies a row's pages into one run of tiles. Only what memory holds is attended.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from mcf.attn import PartialState
from mcf.rtl.attending import NEXT_RECORD, Attending, Key, RowWork, no_blocks, put_block
from mcf.rtl.board import Board, Packet
from mcf.rtl.golden.dma import beats_of
from mcf.rtl.golden.state import BlockState, decode, encode, from_beats
from mcf.rtl.holding import Cell, Holding, only, padded, record_bytes
from mcf.rtl.integers import Integers, pack_queries, rounded, unpack_queries
from mcf.rtl.lower import Lowered, Message
from mcf.rtl.lower_whole import RECORD_BYTES
from mcf.rtl.number import Array, from_wire, to_wire
from mcf.rtl.page_store import PageStore
from mcf.rtl.pages import PageMap
from mcf.rtl.rows import Batch, RowHead, room_for
from mcf.schedule.program import Program
from mcf.schedule.steps import KV, QUERY, Step

End = Callable[[int, int, int, int], None]


class WholeCompute(Holding):
    """`blocks` (row, tick) -> states as they left hardware; `end(row, tick, start, cycle)` tells of a finished row."""

    def __init__(
        self, program: Program, node: int, board: Board, low: Lowered, integers: Integers, *, end: End
    ) -> None:
        super().__init__(program, node)
        self.board, self.low, self.integers, self.end = board, low, integers, end
        memory = board.nodes[node].ddr
        pages = PageMap(meta=self.meta, size_bytes=memory.timing.size_bytes)
        self.pages, self.work, self.work_at = PageStore(pages, memory), pages.work, pages.work.start
        board.nodes[node].address = pages.end
        self.attending = Attending(board, node, group=self.meta.group_heads, route=low.own[node], end=self._came_back)
        self.blocks: dict[Key, BlockState] = {}
        self.made: dict[tuple[int, int, int], list[int]] = {}  # row, tick, query head -> what hardware must make
        self.direct: set[Key] = set()  # rows whose states go to reduction units when these are ready

    # --- what this node makes ---

    def ask(self, chunk: int, node: int, tick: int, queries: Array) -> None:
        """Take in queries that this node made, in 12 bits."""
        self.queries[chunk, node, tick] = rounded(queries)

    def keep(self, layer: int, positions: Array, keys: Array, values: Array) -> None:
        """Quantise what this node makes, and store it in pages."""
        for head in range(self.meta.num_kv_heads):
            shard = self.integers.quantise(layer, head, keys[:, head], values[:, head])
            self.pages.write(layer, head, positions, shard)

    def forget(self, cells: Iterable[Cell], layers: Iterable[int]) -> None:
        """Give up copies: what lies there is spoilt."""
        todo = [(cell, layer) for layer in layers for cell in cells]
        for cell, layer in todo:
            positions, heads = self.cell_index(cell)
            for head in range(heads.start, heads.stop):
                self.pages.spoil(layer, head, positions)
            self.held.discard((cell, layer))

    # --- attention ---

    def attend(self, index: int, tick: int) -> None:
        """Give the row to the compute half; where reduction units take its states, once they are ready for them."""
        if index in self.low.direct:
            self.direct.add((index, tick))
            self.end(index, tick, self.board.cycle, self.board.cycle)
            return
        row = self.program.rows[index]
        num_rows = len(self.program.positions(row.chunk, row.q, tick))
        heads = self.q_heads(row)
        self.attending.start(
            RowWork(
                key=(index, tick),
                work=self._batches(index, tick, child=0),
                blocks=no_blocks(num_rows, self.meta.num_q_heads, self.meta.head_dim),
                left=num_rows * (heads.stop - heads.start),
                start=self.board.cycle,
            )
        )

    def _batches(self, index: int, tick: int, *, child: int) -> Iterator[Batch]:
        """The row's batches, KV head by KV head; its tiles are gathered when they are due."""
        row, layer = self.program.rows[index], self.program.layer(tick)
        k_pos, q_pos = np.sort(self.key_positions(index, tick)), self.program.positions(row.chunk, row.q, tick)
        seen = np.searchsorted(k_pos, q_pos, side="right").tolist()
        for head in range(row.h_lo, row.h_hi):
            group = slice(head * self.meta.group_heads, (head + 1) * self.meta.group_heads)
            queries = [self.integers.queries(layer, head, q) for q in self.queries[row.chunk, row.q, tick][:, group]]
            base = self._room(room_for(len(k_pos), len(q_pos)))
            job = RowHead(head=head, base=base, num_tokens=len(k_pos), queries=queries, seen=seen, child=child)
            for address, data in job.parts(self.pages.read(layer, head, k_pos)):
                self.pages.memory.write(address, data)
            yield from job.work(self.integers.shard(layer, head, k_pos))

    def _room(self, size: int) -> int:
        """Memory for a row at work, whose predecessors but the last few have ended."""
        if self.work_at + size > self.work.stop:
            self.work_at = self.work.start
        at, self.work_at = self.work_at, self.work_at + -(-size // 8192) * 8192
        return at

    def _came_back(self, row: RowWork, cycle: int) -> None:
        self._set(row.key, row.blocks)
        self.end(*row.key, row.start, cycle)

    def _set(self, key: Key, blocks: BlockState) -> None:
        self.blocks[key] = blocks
        self.states[key] = self._real(key[1], blocks)

    def _real(self, tick: int, blocks: BlockState) -> PartialState:
        """The state that integers stand for."""
        state = decode(blocks, 1.0)
        state.out[...] *= self.integers.head_units(self.program.layer(tick))
        return state

    def _blocks(self, source: int, tick: int) -> BlockState:
        """A row's states as records: those of hardware, or rounded ones of a merge."""
        if (source, tick) in self.blocks:
            return self.blocks[source, tick]
        state = self.states[source, tick]
        out = state.out / self.integers.head_units(self.program.layer(tick))
        return encode(PartialState(max_=state.max_, sum_=state.sum_, out=out), 1.0)

    def receive(self, header: dict[str, int], packet: Packet) -> None:
        """Take in a record that came back."""
        self.attending.receive(header, packet)

    def watch(self) -> int:
        """Compare the records that have left with the golden model's."""
        return self.attending.watch()

    @property
    def is_busy(self) -> bool:
        """Say whether records have not left."""
        return self.attending.is_busy

    @property
    def num_exact(self) -> int:
        """States that left hardware as the golden model says."""
        return self.attending.num_exact

    # --- payloads ---

    def put(self, row: Step, messages: Sequence[Message], tick: int, source: int) -> list[int]:
        """Pages are sent from where they lie; queries and states are stored for it."""
        if row.payload == KV:
            layer = self.program.layer(tick)
            return [self.pages.pages.page(layer, one.head, one.half, one.block) for one in messages]
        data, starts = padded(self._payload(row, message, tick, source) for message in messages)
        address = self.board.store(self.node, data)
        return [address + start for start in starts]

    def _payload(self, row: Step, message: Message, tick: int, source: int) -> bytes:
        rows, heads = self.message_rows(row, message, tick), self.message_heads(message)
        if row.payload == QUERY:
            queries = self.queries[row.chunk, row.q, tick][rows, heads].reshape(-1, self.meta.head_dim)
            return pack_queries(queries) if self.meta.act_bytes == 2 else to_wire(queries, 4)
        blocks = self._blocks(source, tick)
        places = [(at, head) for at in rows.tolist() for head in range(heads.start, heads.stop)]
        return b"".join(record_bytes(blocks, *place, 0) for place in places)

    def arrive(self, recv: int, message: Message, tick: int, data: bytes) -> None:
        """Take in the bytes of one message of a posted receive."""
        row, heads, layer = self.program.rows[recv], self.message_heads(message), self.program.layer(tick)
        if row.payload == KV:
            self.pages.put(layer, message.head, message.half, message.block, data)
            return
        rows = self.message_rows(row, message, tick)
        if row.payload == QUERY:
            is_packed, head_dim = self.meta.act_bytes == 2, self.meta.head_dim
            values = unpack_queries(data, head_dim) if is_packed else from_wire(data, 4)
            self.queries_of(row, tick)[rows, heads] = values.reshape(len(rows), -1, head_dim)
            return
        self._arrive_state((recv, tick), rows.tolist(), heads, data)

    def _arrive_state(self, key: Key, rows: Sequence[int], heads: slice, data: bytes) -> None:
        row = self.program.rows[key[0]]
        num_rows = len(self.program.positions(row.chunk, row.q, key[1]))
        blocks = self.blocks.setdefault(key, no_blocks(num_rows, self.meta.num_q_heads, self.meta.head_dim))
        places = [(at, head) for at in rows for head in range(heads.start, heads.stop)]
        for number, place in enumerate(places):
            record = data[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
            put_block(blocks, place, block_of(record, self.meta.head_dim))
        self._set(key, blocks)

    # --- states of decode ---

    def has_state(self, row: int, tick: int) -> bool:
        """Say whether a row's state can be sent."""
        return (row, tick) in self.direct or super().has_state(row, tick)

    def put_state(self, source: int, tick: int, child: int) -> list[int]:
        """What hardware will make has no address of its own; other states are stored."""
        if (source, tick) not in self.direct:
            blocks = self._blocks(source, tick)
            heads = range(self.meta.num_q_heads)
            return [self.board.store(self.node, record_bytes(blocks, 0, head, child)) for head in heads]
        heads_here = self.q_heads(self.program.rows[source])
        nothing = record_bytes(no_blocks(1, 1, self.meta.head_dim), 0, 0, child)
        return [
            NEXT_RECORD if heads_here.start <= head < heads_here.stop else self.board.store(self.node, nothing)
            for head in range(self.meta.num_q_heads)
        ]

    def make_state(self, source: int, tick: int, child: int) -> None:
        """Give the commands of a row whose states go straight to reduction units."""
        if (source, tick) in self.direct:
            for batch in self._batches(source, tick, child=child):
                self.attending.give((source, tick), batch)
                first = batch.head * self.meta.group_heads
                self.made.update({(source, tick, first + i): record for i, record in enumerate(batch.records)})

    def record(self, source: int, tick: int, head: int) -> BlockState:
        """One query head's state of a row of decode, as the golden model has it."""
        head_dim = self.meta.head_dim
        if (source, tick) in self.direct:
            made = self.made.get((source, tick, head))
            return only(no_blocks(1, 1, head_dim), 0, 0) if made is None else from_beats(made, head_dim)[0]
        return only(self._blocks(source, tick), 0, head)

    def merged(self, tick: int, head: int, block: BlockState) -> PartialState:
        """The state, over all query heads, that the reduction unit made of one."""
        state = decode(block, float(self.integers.head_units(self.program.layer(tick))[head, 0]))
        return self.pad(state, slice(head, head + 1))


def block_of(record: bytes, head_dim: int) -> BlockState:
    """Read a record's bytes."""
    return from_beats(beats_of(record), head_dim)[0]
