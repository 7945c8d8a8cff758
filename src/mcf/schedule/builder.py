"""`Builder`: how a policy writes a schedule. It knows verbs, not ids; empty sets issue no row."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np

from mcf.cluster import Topology
from mcf.errors import ScheduleError
from mcf.schedule.meta import ScheduleMeta
from mcf.schedule.passes import place_recvs
from mcf.schedule.schedule import Array, Route, Schedule
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    COMPUTE,
    CONVERGE,
    DECODE,
    DRAIN,
    FREE,
    KV,
    MERGE,
    NIC,
    NO_HOLD,
    NO_PAYLOAD,
    NONE,
    NUM_COLUMNS,
    OWNER,
    PREFILL,
    PRODUCE,
    QUERY,
    SEND,
    STATE,
    STEP,
    STREAM,
)

Range = tuple[int, int]
Owners = dict[tuple[int, int, int], int]


class Builder:
    """Append rows in any node order; each node's own rows keep the order in which they were appended.

    Ranges are half-open pairs. A verb returns the row's handle (an int, for `after` and `inputs`), or None when the set
    is empty.
    """

    def __init__(self, meta: ScheduleMeta, pieces: Array, owners: Owners | None = None) -> None:
        self.meta = meta
        self.pieces = pieces
        self._rows = array("i")
        self._after = array("i")
        self._routes: dict[Route, int] = {}
        self._topology = Topology.parse(meta.topology, meta.num_nodes)
        self._trees: dict[tuple[int, tuple[int, ...]], Route] = {}
        self._owners = owners or {}
        self._shell = Schedule(
            meta=meta,
            pieces=pieces,
            owners=self._owner_array(),
            routes=(),
            steps=np.empty(0, STEP),
            after=np.empty(0, "<i4"),
        )
        self._heads = (0, meta.num_kv_heads)
        self._tokens = self._shell.tokens.tolist()

    @property
    def num_chunks(self) -> int:
        """Chunks of the prompt."""
        return self.meta.num_chunks

    def tokens_in(self, chunks: Range, makers: Range) -> int:
        """Prompt tokens of a block set."""
        return self._shell.tokens_in(*chunks, *makers)

    def has_tokens(self, node: int, chunk: int) -> bool:
        """Say whether a node computes any token of a chunk."""
        return bool(self._tokens[chunk][node])

    def produce(self, node: int, chunk: int) -> int | None:
        """Dense work of a node's pieces of a chunk; stores its KV blocks."""
        if chunk < self.meta.num_chunks and not self.has_tokens(node, chunk):
            return None
        stage = PREFILL if chunk < self.meta.num_chunks else DECODE
        return self._add(PRODUCE, COMPUTE, stage, node, chunk, (chunk, chunk + 1), (node, node + 1), self._heads)

    def send_kv(
        self,
        node: int,
        dsts: Iterable[int],
        chunk: int,
        *,
        chunks: Range,
        makers: Range,
        hold: int = STREAM,
        ahead: int = 0,
        heads: Range | None = None,
        route: Route | None = None,
        after: Sequence[int | None] = (),
    ) -> int | None:
        """Send blocks during chunk `chunk`'s layers: to one node, or by multicast over `route`.

        The default route is the topology's own: direct links where there are any, else a tree, whose nodes on the way
        receive too.
        """
        targets = [d for d in dsts if d != node]
        if not targets or not self.tokens_in(chunks, makers):
            return None
        dst, index = self._route(node, targets, route)
        span = heads or self._heads
        return self._add(
            SEND, NIC, PREFILL, node, chunk, chunks, makers, span, KV, hold, ahead, NONE, dst, index, after
        )

    def send_query(
        self, node: int, dsts: Iterable[int], chunk: int, *, heads: Range | None = None, route: Route | None = None
    ) -> int | None:
        """Send the queries of a node's own pieces of a chunk."""
        targets = [d for d in dsts if d != node]
        if not targets or not self.has_tokens(node, chunk):
            return None
        dst, index = self._route(node, targets, route)
        span = heads or self._heads
        cell = (chunk, chunk + 1), (node, node + 1)
        return self._add(SEND, NIC, PREFILL, node, chunk, *cell, span, QUERY, NO_HOLD, 0, node, dst, index)

    def send_state(
        self, node: int, dsts: Iterable[int], chunk: int, *, of: int | None, route: Route | None = None
    ) -> int | None:
        """Send the partial state that row `of` (an attend or a merge) makes."""
        targets = [d for d in dsts if d != node]
        if not targets or of is None:
            return None
        dst, index = self._route(node, targets, route)
        row = self._rows[of * NUM_COLUMNS : (of + 1) * NUM_COLUMNS]
        stage, q = row[2], row[14]
        sets = (row[5], row[6]), (row[7], row[8]), (row[9], row[10])
        return self._add(SEND, NIC, stage, node, chunk, *sets, STATE, NO_HOLD, 0, q, dst, index, (of,))

    def attend(
        self, node: int, chunk: int, *, chunks: Range, makers: Range, q: int | None = None, heads: Range | None = None
    ) -> int | None:
        """Attend the pieces of query node `q` (default: the node's own) to a block set: one partial state."""
        query = node if q is None else q
        stage = PREFILL if chunk < self.meta.num_chunks else DECODE
        if stage == PREFILL and not (self.has_tokens(query, chunk) and self.tokens_in(chunks, makers)):
            return None
        return self._add(ATTEND, COMPUTE, stage, node, chunk, chunks, makers, heads or self._heads, q=query)

    def merge(
        self, node: int, chunk: int, inputs: Sequence[int | None], *, q: int | None = None, lane: int = COMPUTE
    ) -> int | None:
        """Merge the states of `inputs`: attends and merges of this node, and STATE sends that reach it."""
        rows = [i for i in inputs if i is not None]
        if not rows:
            return None
        stage = PREFILL if chunk < self.meta.num_chunks else DECODE
        sets = (0, min(chunk, self.meta.num_chunks) + 1), (0, self.meta.num_nodes), self._heads
        return self._add(MERGE, lane, stage, node, chunk, *sets, q=node if q is None else q, after=rows)

    def drain(self, node: int, chunk: int, *, chunks: Range, makers: Range, heads: Range | None = None) -> int | None:
        """Mark copies as draining before chunk `chunk` (chunk = C: in the converge section)."""
        return self._retire(DRAIN, node, chunk, chunks, makers, heads)

    def free(self, node: int, chunk: int, *, chunks: Range, makers: Range, heads: Range | None = None) -> int | None:
        """Give back the memory of draining copies before chunk `chunk` (chunk = C: in the converge section)."""
        return self._retire(FREE, node, chunk, chunks, makers, heads)

    def decode(self) -> None:
        """Write the decode template: every node computes the token, attends what it owns, and merges all states."""
        meta, nodes = self.meta, range(self.meta.num_nodes)
        chunk = meta.num_chunks
        attends = {n: [self._decode_attend(n, sets) for sets in self._owned_sets(n)] for n in self._produce_all(chunk)}
        states: dict[int, list[int]] = {}
        for n in nodes:
            states[n] = [a for a in attends[n] if a is not None]
        sends = {n: [self.send_state(n, [d for d in nodes if d != n], chunk, of=a) for a in states[n]] for n in nodes}
        for n in nodes:
            remote = [s for m in nodes if m != n for s in sends[m]]
            self.merge(n, chunk, [*states[n], *remote], q=ALL)

    def build(self) -> Schedule:
        """Sort rows by node, place every receive, return the schedule."""
        rows = (
            np.frombuffer(self._rows, dtype="<i4").reshape(-1, NUM_COLUMNS).copy()
            if self._rows
            else np.empty((0, NUM_COLUMNS), "<i4")
        )
        steps = np.ascontiguousarray(rows).view(STEP).reshape(-1)
        order = np.argsort(steps["node"], kind="stable")
        new_row = np.empty(len(order), dtype="<i4")
        new_row[order] = np.arange(len(order), dtype="<i4")
        after = np.frombuffer(self._after, dtype="<i4").copy() if self._after else np.empty(0, "<i4")
        sched = self._shell.replace(
            steps=steps[order], after=new_row[after] if len(after) else after, routes=tuple(self._routes)
        )
        return place_recvs(sched)

    def _produce_all(self, chunk: int) -> list[int]:
        for n in range(self.meta.num_nodes):
            self.produce(n, chunk)
        return list(range(self.meta.num_nodes))

    def _decode_attend(self, node: int, sets: tuple[Range, Range, Range]) -> int | None:
        return self.attend(node, self.meta.num_chunks, chunks=sets[0], makers=sets[1], heads=sets[2], q=ALL)

    def _owned_sets(self, node: int) -> list[tuple[Range, Range, Range]]:
        """Block sets that a node owns: its own column with the generated tokens, and what others made for it."""
        chunk = self.meta.num_chunks
        if not self._owners:
            return [((0, chunk + 1), (node, node + 1), self._heads)]
        return [*self._foreign_sets(node), ((chunk, chunk + 1), (node, node + 1), self._heads)]

    def _foreign_sets(self, node: int) -> list[tuple[Range, Range, Range]]:
        """Prompt blocks that a node owns; neighbouring makers with the same chunks are one set."""
        cuts, owner = self.meta.head_cuts, self._shell.owner
        out: list[tuple[Range, Range, Range]] = []
        for g in range(self.meta.num_groups):
            last: dict[Range, int] = {}  # chunk range -> the set of this group that ends at the maker before
            for maker in range(self.meta.num_nodes):
                mine = np.flatnonzero(np.diff(np.concatenate([[0], owner[:, maker, g] == node, [0]])))
                found: dict[Range, int] = {}
                for lo, hi in zip(mine[::2].tolist(), mine[1::2].tolist(), strict=True):
                    at = last.get((lo, hi), len(out))
                    first = out[at][1][0] if at < len(out) else maker
                    out[at : at + 1] = [((lo, hi), (first, maker + 1), (cuts[g], cuts[g + 1]))]
                    found[lo, hi] = at
                last = found
        return [sets for sets in out if self.tokens_in(*sets[:2])]

    def _retire(
        self, kind: int, node: int, chunk: int, chunks: Range, makers: Range, heads: Range | None
    ) -> int | None:
        if not self.tokens_in(chunks, makers):
            return None
        stage = PREFILL if chunk < self.meta.num_chunks else CONVERGE
        return self._add(kind, COMPUTE, stage, node, chunk, chunks, makers, heads or self._heads)

    def _route(self, node: int, targets: list[int], route: Route | None) -> tuple[int, int]:
        dst = targets[0] if len(targets) == 1 else NONE
        if route is None and dst != NONE and self._topology.has_link(node, dst):
            return dst, NONE
        edges = route or self._default_route(node, tuple(targets))
        return dst, self._routes.setdefault(edges, len(self._routes))

    def _default_route(self, node: int, targets: tuple[int, ...]) -> Route:
        key = node, targets
        if key not in self._trees:
            self._trees[key] = self._topology.multicast(node, targets)
        return self._trees[key]

    def _add(
        self,
        kind: int,
        lane: int,
        stage: int,
        node: int,
        chunk: int,
        chunks: Range,
        makers: Range,
        heads: Range,
        payload: int = NO_PAYLOAD,
        hold: int = NO_HOLD,
        ahead: int = 0,
        q: int = NONE,
        dst: int = NONE,
        route: int = NONE,
        after: Sequence[int | None] = (),
    ) -> int:
        row = len(self._rows) // NUM_COLUMNS
        first = len(self._after)
        if after:
            self._after.extend(a for a in after if a is not None)
        self._rows.extend(
            (kind, lane, stage, node, chunk, *chunks, *makers, *heads)
            + (payload, hold, ahead, q, dst, route, NONE, first, len(self._after))
        )
        return row

    def _owner_array(self) -> Array:
        rows = [(c, m, g, o) for (c, m, g), o in sorted(self._owners.items()) if o != m]
        if any(not 0 <= row[3] < self.meta.num_nodes for row in rows):
            raise ScheduleError(f"an owner is not one of the {self.meta.num_nodes} nodes")
        return np.array(rows, dtype=OWNER)
