"""`Schedule`: columns, not objects. One list of rows per node; views and token arithmetic over them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.schedule.meta import ScheduleMeta
from mcf.schedule.steps import ALL, DECODE, KV, QUERY, SEND, Step

Edge = tuple[int, int]
Route = tuple[Edge, ...]
Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Schedule:
    """A decided run: what each node does, in which order. Built by `Builder`, judged by `verify`, obeyed by executors.

    `steps` [R] STEP records sorted by node, in list order; `pieces` PIECE records sorted by (chunk, node, lo);
    `owners` OWNER records of the blocks whose owner is not their maker; `after` [K] int32 row numbers;
    `routes` tuples of (from, to) edges, from the root outward.
    """

    meta: ScheduleMeta
    pieces: Array
    owners: Array
    routes: tuple[Route, ...]
    steps: Array
    after: Array

    def __len__(self) -> int:
        return len(self.steps)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        same = self.meta == other.meta and self.routes == other.routes
        return same and all(
            np.array_equal(a, b)
            for a, b in (
                (self.pieces, other.pieces),
                (self.owners, other.owners),
                (self.steps, other.steps),
                (self.after, other.after),
            )
        )

    def __hash__(self) -> int:
        return hash((self.meta, len(self.steps), self.steps.tobytes()))

    def replace(self, **changes: Any) -> "Schedule":
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @cached_property
    def node_bounds(self) -> Array:
        """[N+1] row offsets of each node's list."""
        return np.searchsorted(self.steps["node"], np.arange(self.meta.num_nodes + 1))

    def node_rows(self, node: int) -> range:
        """Rows of one node's list."""
        return range(int(self.node_bounds[node]), int(self.node_bounds[node + 1]))

    @cached_property
    def tokens(self) -> Array:
        """[C, N] prompt tokens that each maker computes in each chunk."""
        out = np.zeros((self.meta.num_chunks, self.meta.num_nodes), dtype=np.int64)
        np.add.at(out, (self.pieces["chunk"], self.pieces["node"]), self.pieces["hi"] - self.pieces["lo"])
        return out

    @cached_property
    def _prefix(self) -> list[list[int]]:
        out = np.zeros((self.meta.num_chunks + 2, self.meta.num_nodes + 1), dtype=np.int64)
        out[1:-1, 1:] = self.tokens.cumsum(0).cumsum(1)
        out[-1] = out[-2]
        return out.tolist()

    def tokens_in(self, c_lo: int, c_hi: int, m_lo: int, m_hi: int) -> int:
        """Prompt tokens of a block set (chunk range x maker range)."""
        p = self._prefix
        return p[c_hi][m_hi] - p[c_lo][m_hi] - p[c_hi][m_lo] + p[c_lo][m_lo]

    @cached_property
    def owner(self) -> Array:
        """[C, N, G] the node that owns each block for ever."""
        meta = self.meta
        makers = np.arange(meta.num_nodes, dtype=np.int32)[None, :, None]
        out = np.broadcast_to(makers, (meta.num_chunks, meta.num_nodes, meta.num_groups)).copy()
        o = self.owners
        out[o["chunk"], o["maker"], o["group"]] = o["owner"]
        return out

    @cached_property
    def piece_bounds(self) -> dict[tuple[int, int], tuple[int, int]]:
        """(chunk, node) -> range of rows in `pieces`; absent where the node has no tokens."""
        keys = np.stack([self.pieces["chunk"], self.pieces["node"]], 1)
        cuts = [0, *(np.flatnonzero((keys[1:] != keys[:-1]).any(1)) + 1).tolist(), len(keys)]
        return {(int(keys[a][0]), int(keys[a][1])): (a, b) for a, b in pairwise(cuts) if b > a}

    def spans(self, chunk: int, node: int) -> list[tuple[int, int]]:
        """Token spans [(lo, hi)] that a node computes in a chunk, ascending."""
        lo, hi = self.piece_bounds.get((chunk, node), (0, 0))
        return [(int(p["lo"]), int(p["hi"])) for p in self.pieces[lo:hi]]

    def step(self, row: int) -> Step:
        """One row as a named tuple of ints."""
        return Step(*self.steps[row].tolist())

    def after_of(self, row: int) -> Sequence[int]:
        """Rows that must have completed before `row` starts."""
        step = self.steps[row]
        return self.after[step["after_lo"] : step["after_hi"]].tolist()  # type: ignore[no-any-return]

    def receivers(self, row: int) -> list[int]:
        """Nodes that a send delivers to."""
        dst = int(self.steps[row]["dst"])
        return [dst] if dst >= 0 else [b for _, b in self.routes[int(self.steps[row]["route"])]]

    def groups(self, h_lo: int, h_hi: int) -> slice:
        """Head groups of a KV-head span; the span's ends are head cuts (checked by `verify`)."""
        cuts = self.meta.head_cuts
        return slice(cuts.index(h_lo), cuts.index(h_hi))

    @cached_property
    def row_elements(self) -> Array:
        """[R] payload elements per layer of each send row (decode rows: per token); 0 elsewhere."""
        s, meta = self.steps, self.meta
        p = np.asarray(self._prefix, dtype=np.int64)
        c_lo, c_hi = s["c_lo"], np.minimum(s["c_hi"], meta.num_chunks)
        sets = p[c_hi, s["m_hi"]] - p[c_lo, s["m_hi"]] - p[c_hi, s["m_lo"]] + p[c_lo, s["m_lo"]]
        chunk = np.minimum(s["chunk"], meta.num_chunks - 1)
        queries = np.where(s["q"] >= 0, self.tokens[chunk, np.maximum(s["q"], 0)], s["q"] == ALL)
        queries = np.where(s["stage"] == DECODE, 1, queries)
        heads = (s["h_hi"] - s["h_lo"]).astype(np.int64)
        q_heads = heads * meta.group_heads
        out = np.where(
            s["payload"] == QUERY, queries * q_heads * meta.head_dim, queries * q_heads * (meta.head_dim + 2)
        )
        out = np.where(s["payload"] == KV, sets * 2 * heads * meta.head_dim, out)
        return np.where(s["kind"] == SEND, out, 0)

    @cached_property
    def row_bytes(self) -> Array:
        """[R] payload bytes per layer of each send row (decode rows: per token); 0 elsewhere."""
        width = np.array([0, self.meta.kv_bytes, self.meta.act_bytes, 4])
        out = (self.row_elements * width[self.steps["payload"]]).astype(np.int64)
        scales = self.row_elements // self.meta.head_dim * self.meta.kv_scale_bytes
        return np.asarray(out + np.where(self.steps["payload"] == KV, scales, 0))
