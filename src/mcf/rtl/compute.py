"""One node's compute half, which stands in for hardware that is not there: numpy on tensors of the schedule's type.

It reads nothing but what this node made or what its network half delivered; what it does not hold is NaN.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from mcf.attn import PartialState, attend
from mcf.rtl.board import Board
from mcf.rtl.golden.state import BlockState, decode, encode
from mcf.rtl.holding import Cell, Holding, padded, record_bytes
from mcf.rtl.lower import Message
from mcf.rtl.number import Array, as_kept, from_wire, kv_from_wire, kv_to_wire, to_wire
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.program import Program
from mcf.schedule.steps import KV, QUERY, Step


class Compute(Holding):
    """`kv` [L, 2, S+T, Hkv, d]; `v_scale`: no value of the run is larger; `end(row, tick)` tells of a finished row."""

    def __init__(
        self, program: Program, node: int, board: Board, *, v_scale: float, end: Callable[[int, int], None]
    ) -> None:
        super().__init__(program, node)
        self.board, self.v_scale, self.end = board, v_scale, end
        meta = self.meta
        num_positions = meta.prompt_tokens + program.decode_tokens
        self.kv = np.full((meta.num_layers, 2, num_positions, meta.num_kv_heads, meta.head_dim), np.nan)

    def ask(self, chunk: int, node: int, tick: int, queries: Array) -> None:
        """Take in queries that this node made."""
        self.queries[chunk, node, tick] = queries.copy()

    def keep(self, layer: int, positions: Array, keys: Array, values: Array) -> None:
        """Take in what this node makes for itself, in the schedule's type."""
        self.kv[layer][:, positions] = as_kept(keys, self.meta), as_kept(values, self.meta)

    def forget(self, cells: Iterable[Cell], layers: Iterable[int]) -> None:
        """Give up copies."""
        for layer in layers:
            for cell in cells:
                positions, heads = self.cell_index(cell)
                self.kv[layer][:, positions, heads] = np.nan
                self.held.discard((cell, layer))

    def attend(self, index: int, tick: int) -> None:
        """One partial state, over all query heads, at once."""
        row, layer = self.program.rows[index], self.program.layer(tick)
        heads, q_pos = self.q_heads(row), self.program.positions(row.chunk, row.q, tick)
        k_pos = self.key_positions(index, tick)
        keys, values = self.kv[layer][:, k_pos, row.h_lo : row.h_hi]
        queries = self.queries[row.chunk, row.q, tick][:, heads]
        state = attend(queries, keys, values, q_pos, k_pos, self.meta.head_dim**-0.5)
        self.states[index, tick] = self.pad(state, heads)
        self.end(index, tick)

    # --- payloads ---

    def put(self, row: Step, messages: Sequence[Message], tick: int, source: int) -> list[int]:
        """All payloads go where the node's producer finds them."""
        data, starts = padded(self._payload(row, message, tick, source) for message in messages)
        address = self.board.store(self.node, data)
        return [address + start for start in starts]

    def _payload(self, row: Step, message: Message, tick: int, source: int) -> bytes:
        meta, layer, heads = self.meta, self.program.layer(tick), self.message_heads(message)
        if row.payload == KV:
            at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
            return kv_to_wire(self.kv[layer, message.half, at, message.head], meta)
        rows = self.message_rows(row, message, tick)
        if row.payload == QUERY:
            return to_wire(self.queries[row.chunk, row.q, tick][rows, heads], meta.act_bytes)
        state = self.states[source, tick]
        parts = (state.max_[rows, heads, None], state.sum_[rows, heads, None], state.out[rows, heads])
        return to_wire(np.concatenate(parts, axis=-1), 4)

    def arrive(self, recv: int, message: Message, tick: int, data: bytes) -> None:
        """Take in the bytes of one message of a posted receive."""
        row, meta, heads = self.program.rows[recv], self.meta, self.message_heads(message)
        if row.payload == KV:
            at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
            self.kv[self.program.layer(tick), message.half, at, message.head] = kv_from_wire(data, meta)
            return
        rows = self.message_rows(row, message, tick)
        shape = (len(rows), meta.group_heads, -1)
        if row.payload == QUERY:
            self.queries_of(row, tick)[rows, heads] = from_wire(data, meta.act_bytes).reshape(shape)
            return
        values, state = from_wire(data, 4).reshape(shape), self.state_of(recv, tick)
        state.max_[rows, heads], state.sum_[rows, heads] = values[..., 0], values[..., 1]
        state.out[rows, heads] = values[..., 2:]

    # --- states of decode ---

    def put_state(self, source: int, tick: int, child: int) -> list[int]:
        """Records in block floating point, stored."""
        blocks = encode(self.states[source, tick], self.v_scale)
        return [
            self.board.store(self.node, record_bytes(blocks, 0, head, child)) for head in range(self.meta.num_q_heads)
        ]

    def merged(self, tick: int, head: int, block: BlockState) -> PartialState:
        """The state, over all query heads, that the reduction unit made of one."""
        return self.pad(decode(block, self.v_scale), slice(head, head + 1))
