"""One node's compute half, which stands in for hardware that is not there: tensors, partial states, memory in use.

It reads nothing but what this node made or what its network half delivered; what it does not hold is NaN.
"""

from collections.abc import Iterable

import numpy as np

from mcf.attn import PartialState, attend, empty
from mcf.rtl.lower import Message
from mcf.rtl.number import Array, as_kept, from_wire, kv_from_wire, kv_to_wire, to_wire
from mcf.schedule.memory import reserve_bytes, taken_bytes
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.program import GIVE, MemoryEvent, Program
from mcf.schedule.steps import ALL, KV, QUERY, RECV, Step

Cell = tuple[int, int, int]


class Compute:
    """Tensors of one node. `kv` [L, 2, S+T, Hkv, d]; `held` are the (cell, layer) that are here whole."""

    def __init__(self, program: Program, node: int) -> None:
        self.program, self.sched, self.meta, self.node = program, program.sched, program.sched.meta, node
        meta = self.meta
        num_positions = meta.prompt_tokens + program.decode_tokens
        self.kv = np.full((meta.num_layers, 2, num_positions, meta.num_kv_heads, meta.head_dim), np.nan)
        self.held: set[tuple[Cell, int]] = set()
        self.queries: dict[tuple[int, int, int], Array] = {}
        self.states: dict[tuple[int, int], PartialState] = {}
        self.taken = taken_bytes(program.sched)
        self.bytes = self.peak = int(reserve_bytes(program.sched)[node])

    # --- positions ---

    def cell_index(self, cell: Cell) -> tuple[Array, slice]:
        """Positions and KV heads of a block."""
        cuts = self.meta.head_cuts
        return self.program.positions(cell[0], cell[1], 0), slice(cuts[cell[2]], cuts[cell[2] + 1])

    def q_heads(self, row: Step) -> slice:
        """Query heads of a row's KV heads."""
        return slice(row.h_lo * self.meta.group_heads, row.h_hi * self.meta.group_heads)

    # --- what rows need and do ---

    def has_blocks(self, cells: Iterable[Cell], layer: int) -> bool:
        """Say whether blocks are here, whole."""
        return all((cell, layer) in self.held for cell in cells)

    def has_queries(self, row: Step, tick: int) -> bool:
        """Say whether the queries of a row are here, whole."""
        values = self.queries.get((row.chunk, row.q, tick))
        return values is not None and not bool(np.isnan(values[:, self.q_heads(row)]).any())

    def keep(self, layer: int, positions: Array, keys: Array, values: Array) -> None:
        """Take in what this node makes for itself: keys and values [T, Hkv, d] in the schedule's type."""
        self.kv[layer][:, positions] = as_kept(keys, self.meta), as_kept(values, self.meta)

    def forget(self, cells: Iterable[Cell], layers: Iterable[int]) -> None:
        """Give up copies."""
        for layer in layers:
            for cell in cells:
                positions, heads = self.cell_index(cell)
                self.kv[layer][:, positions, heads] = np.nan
                self.held.discard((cell, layer))

    def attend(self, index: int, tick: int) -> PartialState:
        """One partial state, over all query heads."""
        row, layer = self.program.rows[index], self.program.layer(tick)
        heads, q_pos = self.q_heads(row), self.program.positions(row.chunk, row.q, tick)
        k_pos = self._key_positions(index, tick)
        keys, values = self.kv[layer][:, k_pos, row.h_lo : row.h_hi]
        queries = self.queries[row.chunk, row.q, tick][:, heads]
        state = attend(queries, keys, values, q_pos, k_pos, self.meta.head_dim**-0.5)
        return self.pad(state, heads)

    def pad(self, state: PartialState, heads: slice) -> PartialState:
        """Spread a state of some heads over all; the others have seen nothing."""
        out = empty(len(state.max_), self.meta.num_q_heads, self.meta.head_dim)
        out.max_[:, heads], out.sum_[:, heads], out.out[:, heads] = state.max_, state.sum_, state.out
        return out

    def _key_positions(self, index: int, tick: int) -> Array:
        row = self.program.rows[index]
        blocks = dict.fromkeys(cell[:2] for cell in self.program.cells[index])
        parts = [np.zeros(0, np.int64), *(self.program.positions(chunk, maker, 0) for chunk, maker in blocks)]
        if row.c_hi > self.meta.num_chunks and row.m_lo <= self.node < row.m_hi:
            tokens = range(tick // self.meta.num_layers + 1)
            parts.append(
                np.array(
                    [self.meta.prompt_tokens + t for t in tokens if self.meta.generated_home(t) == self.node], np.int64
                )
            )
        return np.concatenate(parts)

    # --- payloads ---

    def payload(self, row: Step, message: Message, tick: int, state: PartialState | None) -> bytes:
        """The bytes of one message."""
        meta, layer = self.meta, self.program.layer(tick)
        at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
        heads = slice(message.head * meta.group_heads, (message.head + 1) * meta.group_heads)
        if row.payload == KV:
            return kv_to_wire(self.kv[layer, message.half, at, message.head], meta)
        rows = self._rows(row, at, tick)
        if row.payload == QUERY:
            return to_wire(self.queries[row.chunk, row.q, tick][rows, heads], meta.act_bytes)
        assert state is not None
        parts = (state.max_[rows, heads, None], state.sum_[rows, heads, None], state.out[rows, heads])
        return to_wire(np.concatenate(parts, axis=-1), 4)

    def arrive(self, recv: int, message: Message, tick: int, data: bytes) -> None:
        """Take in the bytes of one message of a posted receive."""
        row, meta = self.program.rows[recv], self.meta
        at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
        heads = slice(message.head * meta.group_heads, (message.head + 1) * meta.group_heads)
        if row.payload == KV:
            self.kv[self.program.layer(tick), message.half, at, message.head] = kv_from_wire(data, meta)
            return
        rows, num_rows = self._rows(row, at, tick), len(self.program.positions(row.chunk, row.q, tick))
        if row.payload == QUERY:
            shape = (num_rows, meta.num_q_heads, meta.head_dim)
            into = self.queries.setdefault((row.chunk, row.q, tick), np.full(shape, np.nan))
            into[rows, heads] = from_wire(data, meta.act_bytes).reshape(len(at), meta.group_heads, meta.head_dim)
            return
        values = from_wire(data, 4).reshape(len(at), meta.group_heads, meta.head_dim + 2)
        state = self.states.setdefault((recv, tick), empty(num_rows, meta.num_q_heads, meta.head_dim))
        state.max_[rows, heads], state.sum_[rows, heads] = values[..., 0], values[..., 1]
        state.out[rows, heads] = values[..., 2:]

    def _rows(self, row: Step, at: Array, tick: int) -> Array:
        if row.q == ALL:
            return np.zeros(1, np.int64)
        found: Array = np.searchsorted(self.program.positions(row.chunk, row.q, tick), at)
        return found

    # --- memory in list order ---

    def move(self, event: MemoryEvent) -> None:
        """Count memory taken or given back."""
        size = int(self.taken[event.row])
        is_slot = event.kind == GIVE and self.program.rows[event.row].kind == RECV
        self.bytes += -size if is_slot else size  # of a free, `taken` says what comes back, as a negative number
        self.peak = max(self.peak, self.bytes)
