"""One node's compute half, which stands in for hardware that is not there: tensors, partial states, memory in use.

It reads nothing but what this node made or what its network half delivered; what it does not hold is NaN.
"""

from collections.abc import Iterable

import numpy as np

from mcf.attn import PartialState, attend, empty
from mcf.rtl.lower import Message
from mcf.rtl.number import Array, from_wire, to_wire
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.program import Program, Row
from mcf.schedule.steps import ALL, DECODE, KEEP, KV, PRODUCE, QUERY

Cell = tuple[int, int, int]


class Compute:
    """Tensors of one node. `kv` [L, 2, S+T, Hkv, d]; `held` are the (cell, layer) that are here whole."""

    def __init__(self, program: Program, node: int, num_positions: int) -> None:
        self.program, self.sched, self.meta, self.node = program, program.sched, program.sched.meta, node
        meta = self.meta
        self.kv = np.full((meta.num_layers, 2, num_positions, meta.num_kv_heads, meta.head_dim), np.nan)
        self.held: set[tuple[Cell, int]] = set()
        self.queries: dict[tuple[int, int, int], Array] = {}
        self.states: dict[tuple[int, int], PartialState] = {}
        self.own_tokens = [0] * meta.num_groups
        self.bytes = self.peak = 0
        self.take(self._reserve_bytes())

    # --- positions ---

    def positions(self, chunk: int, node: int, tick: int) -> Array:
        """Token positions of a node's pieces of a chunk; of the running token in decode."""
        if chunk == self.meta.num_chunks:
            return np.array([self.meta.prompt_tokens + tick // self.meta.num_layers])
        return np.concatenate([np.arange(lo, hi) for lo, hi in self.sched.spans(chunk, node)])

    def cell_index(self, cell: Cell) -> tuple[Array, slice]:
        """Positions and KV heads of a block."""
        cuts = self.meta.head_cuts
        return self.positions(cell[0], cell[1], 0), slice(cuts[cell[2]], cuts[cell[2] + 1])

    def q_heads(self, row: Row) -> slice:
        """Query heads of a row's KV heads."""
        return slice(row.h_lo * self.meta.group_heads, row.h_hi * self.meta.group_heads)

    # --- what rows need and do ---

    def has_blocks(self, cells: Iterable[Cell], layer: int) -> bool:
        """Say whether blocks are here, whole."""
        return all((cell, layer) in self.held for cell in cells)

    def has_queries(self, row: Row, tick: int) -> bool:
        """Say whether the queries of a row are here, whole."""
        values = self.queries.get((row.chunk, row.q, tick))
        return values is not None and not bool(np.isnan(values[:, self.q_heads(row)]).any())

    def forget(self, cells: Iterable[Cell], layers: Iterable[int]) -> None:
        """Give up copies."""
        for layer in layers:
            for cell in cells:
                positions, heads = self.cell_index(cell)
                self.kv[layer][:, positions, heads] = np.nan
                self.held.discard((cell, layer))

    def attend(self, index: int, tick: int) -> PartialState:
        """One partial state, over all query heads."""
        row, layer = self.program.rows[index], tick % self.meta.num_layers
        heads, q_pos = self.q_heads(row), self.positions(row.chunk, row.q, tick)
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
        parts = [np.zeros(0, np.int64), *(self.positions(chunk, maker, 0) for chunk, maker in blocks)]
        if row.c_hi > self.meta.num_chunks and row.m_lo <= self.node < row.m_hi:
            tokens = range(tick // self.meta.num_layers + 1)
            parts.append(np.array([self.meta.prompt_tokens + t for t in tokens if self.makes(t)], np.int64))
        return np.concatenate(parts)

    def makes(self, token: int) -> bool:
        """Say whether this node owns a generated token (semantics 7)."""
        return token // self.meta.page_tokens % self.meta.num_nodes == self.node

    # --- payloads ---

    def payload(self, row: Row, message: Message, tick: int, state: PartialState | None) -> bytes:
        """The bytes of one message."""
        meta, layer = self.meta, tick % self.meta.num_layers
        at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
        heads = slice(message.head * meta.group_heads, (message.head + 1) * meta.group_heads)
        if row.payload == KV:
            return to_wire(self.kv[layer, message.half, at, message.head], meta.kv_bytes)
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
            block = from_wire(data, meta.kv_bytes).reshape(len(at), meta.head_dim)
            self.kv[tick % meta.num_layers, message.half, at, message.head] = block
            return
        rows, num_rows = self._rows(row, at, tick), len(self.positions(row.chunk, row.q, tick))
        if row.payload == QUERY:
            shape = (num_rows, meta.num_q_heads, meta.head_dim)
            into = self.queries.setdefault((row.chunk, row.q, tick), np.full(shape, np.nan))
            into[rows, heads] = from_wire(data, meta.act_bytes).reshape(len(at), meta.group_heads, meta.head_dim)
            return
        values = from_wire(data, 4).reshape(len(at), meta.group_heads, meta.head_dim + 2)
        state = self.states.setdefault((recv, tick), empty(num_rows, meta.num_q_heads, meta.head_dim))
        state.max_[rows, heads], state.sum_[rows, heads] = values[..., 0], values[..., 1]
        state.out[rows, heads] = values[..., 2:]

    def _rows(self, row: Row, at: Array, tick: int) -> Array:
        if row.q == ALL:
            return np.zeros(1, np.int64)
        found: Array = np.searchsorted(self.positions(row.chunk, row.q, tick), at)
        return found

    # --- memory in list order ---

    def take(self, size: int) -> None:
        """Count memory taken."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def size(self, index: int) -> int:
        """Bytes that a row takes or gives back."""
        row, cells = self.program.rows[index], self.program.cells[index]
        if row.kind == PRODUCE:
            return 0 if row.stage == DECODE else self._grow(row.chunk)
        if row.payload != KV or row.hold == KEEP:
            return self._copies(cells)
        tokens = self.sched.tokens_in(row.c_lo, row.c_hi, row.m_lo, row.m_hi)
        return self._pages(tokens, row.h_hi - row.h_lo) * (row.ahead + 1)

    def _pages(self, num_tokens: int, num_heads: int) -> int:
        return self.meta.pages(num_tokens) * self.meta.page_tokens * self.meta.kv_row_bytes(num_heads)

    def _copies(self, cells: Iterable[Cell]) -> int:
        cuts, tokens = self.meta.head_cuts, self.sched.tokens
        return self.meta.num_layers * sum(self._pages(int(tokens[c, m]), cuts[g + 1] - cuts[g]) for c, m, g in cells)

    def _grow(self, chunk: int) -> int:
        """Further pages for the node's new blocks: its own fill pages consecutively, others have pages of their own."""
        total = 0
        for group in range(self.meta.num_groups):
            if self.sched.owner[chunk, self.node, group] != self.node:
                total += self._copies([(chunk, self.node, group)])
                continue
            before = self.own_tokens[group]
            self.own_tokens[group] += int(self.sched.tokens[chunk, self.node])
            total += self._more(before, self.own_tokens[group], group)
        return total

    def _more(self, before: int, after: int, group: int) -> int:
        heads = self.meta.head_cuts[group + 1] - self.meta.head_cuts[group]
        return (self._pages(after, heads) - self._pages(before, heads)) * self.meta.num_layers

    def _reserve_bytes(self) -> int:
        count = sum(self.makes(token) for token in range(self.meta.max_new_tokens))
        own = (self.sched.owner[:, self.node] == self.node) * self.sched.tokens[:, self.node, None]
        return sum(self._more(t, t + count, g) for g, t in enumerate(own.sum(0).tolist()))
