"""One node's memory: blocks of KV, their states, queries, partial states, generated tokens; bytes in use."""

from collections.abc import Iterable

import numpy as np

from mcf.attn import PartialState
from mcf.schedule.kv import ABSENT, READABLE, next_state
from mcf.schedule.schedule import Schedule
from mcf.trace.outcome import Array, Change

Cell = tuple[int, int, int]


class Store:
    """All that one node can read. What it does not hold is not here; what is posted and not arrived is NaN."""

    def __init__(self, sched: Schedule, node: int) -> None:
        meta = sched.meta
        self.sched, self.meta, self.node = sched, meta, node
        shape = (meta.num_chunks, meta.num_nodes, meta.num_groups, meta.num_layers)
        self.directory = np.full(shape, ABSENT, dtype=np.uint8)
        self.changes: list[Change] = []
        self.blocks: dict[tuple[int, int, int, int], Array] = {}
        self.queries: dict[tuple[int, int, int], Array] = {}
        self.states: dict[tuple[int, int], PartialState] = {}
        self.own_tokens = np.zeros(meta.num_groups, dtype=np.int64)
        self.generated = [token for token in range(meta.max_new_tokens) if meta.generated_home(token) == node]
        room = (2, meta.num_layers, len(self.generated), meta.num_kv_heads, meta.head_dim)
        self.generated_kv = np.full(room, np.nan)
        self.num_generated = np.zeros(meta.num_layers, dtype=np.int64)
        self.bytes = self.peak = 0
        self.take(self._reserve_bytes())

    # --- copies ---

    def change(self, cell: Cell, layer: int, event: str, position: int) -> None:
        """Move one copy on by the transition table; raises ScheduleError for a transition that it does not have."""
        new = next_state(int(self.directory[(*cell, layer)]), event)
        self.directory[(*cell, layer)] = new
        if layer == 0:
            self.changes.append((position, *cell, new))

    def readable(self, cells: Iterable[Cell], layer: int) -> bool:
        """Say whether every copy is here and complete in a layer."""
        return all(self.directory[(*cell, layer)] in READABLE for cell in cells)

    def reserve(self, cell: Cell, layer: int) -> None:
        """Make room for a copy: NaN until it has arrived."""
        chunk, maker, group = cell
        cuts = self.meta.head_cuts
        shape = (2, int(self.sched.tokens[chunk, maker]), cuts[group + 1] - cuts[group], self.meta.head_dim)
        self.blocks[(*cell, layer)] = np.full(shape, np.nan)

    def fill(self, cell: Cell, layer: int, values: Array) -> None:
        """Copy a block's K and V [2, T, h, d] into its room."""
        self.blocks[(*cell, layer)][...] = values

    def forget(self, cell: Cell, layer: int) -> None:
        """Overwrite a copy and give up its room."""
        self.blocks.pop((*cell, layer))[...] = np.nan

    def gather(self, cells: list[Cell], layer: int) -> Array:
        """K and V [2, S, h, d] of blocks in the order given; the head groups of one block stand side by side."""
        spans: dict[tuple[int, int], list[Array]] = {}
        for cell in cells:
            spans.setdefault(cell[:2], []).append(self.blocks[(*cell, layer)])
        return np.concatenate([np.concatenate(parts, axis=2) for parts in spans.values()], axis=1)

    # --- generated tokens ---

    def append(self, layer: int, token: int, kv: Array) -> None:
        """Store a generated token's K and V [2, Hkv, d] in one layer."""
        at = self.num_generated[layer]
        assert self.generated[at] == token, (self.generated, at, token)
        self.generated_kv[:, layer, at] = kv
        self.num_generated[layer] += 1

    def tail(self, layer: int, h_lo: int, h_hi: int) -> tuple[Array, Array]:
        """K and V [2, S, h, d] and positions [S] of the generated tokens stored so far."""
        count = int(self.num_generated[layer])
        positions = self.meta.prompt_tokens + np.array(self.generated[:count], dtype=np.int64)
        return self.generated_kv[:, layer, :count, h_lo:h_hi], positions

    # --- bytes ---

    def take(self, size: int) -> None:
        """Count memory taken."""
        self.bytes += size
        self.peak = max(self.peak, self.bytes)

    def give(self, size: int) -> None:
        """Count memory given back."""
        self.bytes -= size
        assert self.bytes >= 0, self.bytes

    def page_bytes(self, num_tokens: int, num_heads: int) -> int:
        """Bytes of the pages that hold tokens of one layer."""
        return self.meta.pages(num_tokens) * self.meta.page_tokens * self.meta.kv_row_bytes(num_heads)

    def group_heads(self, group: int) -> int:
        """KV heads of a head group."""
        return self.meta.head_cuts[group + 1] - self.meta.head_cuts[group]

    def copy_bytes(self, cells: Iterable[Cell]) -> int:
        """Bytes of copies with pages of their own, over all layers."""
        sizes = (self.page_bytes(int(self.sched.tokens[c, m]), self.group_heads(g)) for c, m, g in cells)
        return self.meta.num_layers * sum(sizes)

    def grow_own(self, chunk: int) -> int:
        """Bytes of the further pages that the node's new blocks need; its own ones fill pages consecutively."""
        foreign: list[Cell] = []
        grown = 0
        for group in range(self.meta.num_groups):
            if self.sched.owner[chunk, self.node, group] != self.node:
                foreign.append((chunk, self.node, group))
                continue
            before = self.own_tokens[group]
            self.own_tokens[group] = after = before + self.sched.tokens[chunk, self.node]
            grown += self._more_pages(int(before), int(after), group)
        return grown + self.copy_bytes(foreign)

    def _more_pages(self, before: int, after: int, group: int) -> int:
        heads = self.group_heads(group)
        return (self.page_bytes(after, heads) - self.page_bytes(before, heads)) * self.meta.num_layers

    def _reserve_bytes(self) -> int:
        """Further pages that the generated tokens of this node need behind its own prompt tokens."""
        own = (self.sched.owner[:, self.node] == self.node) * self.sched.tokens[:, self.node, None]
        totals = own.sum(0).tolist()
        return sum(self._more_pages(t, t + len(self.generated), g) for g, t in enumerate(totals))
