"""What one node holds: its directory of blocks (states by the one transition table) and where each block lies in the
pool.

Blocks are cells (chunk, maker, group). A set is walked group by group, makers ascending, then chunks: that is the order
of tokens on the wire.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from mcf.dist.pool import Copy, KvPool, Run, join_runs
from mcf.schedule import Schedule
from mcf.schedule.kv import ABSENT, DRAINING, VALID, next_state
from mcf.schedule.memory import generated_tokens
from mcf.schedule.steps import Step

Cell = tuple[int, int, int]
MAIN = -1


@dataclass(kw_only=True)
class Slots:
    """A stream receive's slots: `tensor` holds `depth` layers; each group's rows start at `offsets[g]` elements of a
    layer.
    """

    tensor: Tensor
    span: Run | None
    depth: int
    offsets: dict[int, int]
    tokens: dict[int, int]

    def rows(self, group: int, layer: int, shape: tuple[int, int, int]) -> Tensor:
        """[T, 2, heads, d] view of one group's tokens in the slot of `layer`."""
        size = self.tensor.numel() // self.depth
        start = (layer % self.depth) * size + self.offsets[group]
        flat = self.tensor[start : start + self.tokens[group] * shape[0] * shape[1] * shape[2]]
        return flat.view(-1, *shape)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Tokens that lie together: in a group's pages (`recv` = MAIN) or in a receive's slot; `pos` None means history."""

    group: int
    recv: int
    start: int
    size: int
    pos: int | None


class KvStore:
    """Directory and memory of one node."""

    def __init__(self, sched: Schedule, node: int, pool: KvPool) -> None:
        self.sched, self.node, self.pool = sched, node, pool
        self.states: dict[Cell, int] = {}
        self.copies: dict[Cell, Copy] = {}
        self.slots: dict[int, Slots] = {}
        self.slot_cells: dict[Cell, tuple[int, int]] = {}  # cell -> (receive row, first token in its slot)
        self.tokens = sched.tokens.tolist()
        self.cuts = sched.meta.head_cuts
        self._reserve()

    def _reserve(self) -> None:
        meta = self.sched.meta
        count = generated_tokens(meta.num_nodes, self.node, meta.max_new_tokens, meta.page_tokens)
        for g, group in enumerate(self.pool.groups):
            mine = self.sched.owner[:, self.node, g] == self.node
            own = int(self.sched.tokens[:, self.node][mine].sum())
            group.reserve(meta.pages(own + count) - meta.pages(own))

    def row_shape(self, group: int) -> tuple[int, int, int]:
        """(2, heads, d) of one token's KV in a group."""
        return 2, self.cuts[group + 1] - self.cuts[group], self.sched.meta.head_dim

    def cells(self, step: Step) -> Iterator[Cell]:
        """Cells with tokens of a block set, in wire order."""
        groups = self.sched.groups(step.h_lo, step.h_hi)
        last = min(step.c_hi, self.sched.meta.num_chunks)
        for g in range(groups.start, groups.stop):
            for m in range(step.m_lo, step.m_hi):
                for c in range(step.c_lo, last):
                    if self.tokens[c][m]:
                        yield c, m, g

    def change(self, cell: Cell, event: str) -> None:
        """Move a cell through the transition table."""
        state = next_state(self.states.get(cell, ABSENT), event)
        if state == ABSENT:
            self.states.pop(cell)
        else:
            self.states[cell] = state

    def produce(self, chunk: int) -> None:
        """Take the places of this node's own blocks of a chunk."""
        for g in range(len(self.pool.groups)):
            cell = chunk, self.node, g
            self.change(cell, "produce")
            num = self.tokens[chunk][self.node]
            if int(self.sched.owner[cell]) == self.node:
                self.copies[cell] = Copy(runs=self.pool.groups[g].append_own(num))
            else:
                self.copies[cell] = self.pool.groups[g].take_copy(num)

    def append_generated(self) -> None:
        """Take the place of one generated token that this node owns."""
        for g, group in enumerate(self.pool.groups):
            cell = self.sched.meta.num_chunks, self.node, g
            old = self.copies.get(cell)
            runs = group.append_own(1, reserved=True)
            self.copies[cell] = Copy(runs=list(join_runs([*(old.runs if old else []), *runs])))

    def write(self, layer: int, runs_of: Cell, k: Tensor, v: Tensor, *, last: int | None = None) -> None:
        """Store k, v [T, heads, d] of a cell's tokens in one layer; `last`: only into its last so many places."""
        kv = self.pool.groups[runs_of[2]].kv[layer]
        runs = self.copies[runs_of].runs
        at = 0
        for start, size in _tail(runs, last):
            kv[start : start + size, 0] = k[at : at + size]
            kv[start : start + size, 1] = v[at : at + size]
            at += size

    def take_keep(self, step: Step) -> None:
        """Take pages for the copies that a kept receive will bring."""
        for cell in self.cells(step):
            self.change(cell, "recv")
            self.copies[cell] = self.pool.groups[cell[2]].take_copy(self.tokens[cell[0]][cell[1]])

    def take_stream(self, row: int, step: Step) -> None:
        """Take the slots of a stream receive: whole pages of its set, `ahead + 1` layers deep."""
        meta = self.sched.meta
        offsets: dict[int, int] = {}
        tokens: dict[int, int] = {}
        size = 0
        for cell in self.cells(step):
            c, m, g = cell
            self.change(cell, "stream")
            tokens.setdefault(g, 0)
            self.slot_cells[cell] = row, tokens[g]
            tokens[g] += self.tokens[c][m]
        for g, num in tokens.items():
            offsets[g] = size
            two, heads, dim = self.row_shape(g)
            size += meta.pages(num) * meta.page_tokens * two * heads * dim
        depth = step.ahead + 1
        tensor, span = self.pool.slots.take(size * depth)
        self.slots[row] = Slots(tensor=tensor, span=span, depth=depth, offsets=offsets, tokens=tokens)

    def release(self, row: int, step: Step) -> None:
        """Give a stream receive's slots back."""
        slots = self.slots.pop(row)
        for cell in self.cells(step):
            self.change(cell, "release")
            del self.slot_cells[cell]
        self.pool.slots.give(slots.tensor, slots.span)

    def arrive(self, step: Step) -> None:
        """All layers of a kept receive are here."""
        for cell in self.cells(step):
            self.change(cell, "arrive")

    def drain(self, step: Step) -> None:
        """Copies stop being schedulable."""
        for cell in self.cells(step):
            self.change(cell, "drain")

    def free(self, step: Step) -> None:
        """Copies give their pages back."""
        for cell in self.cells(step):
            self.change(cell, "free")
            self.pool.groups[cell[2]].free_copy(self.copies.pop(cell))

    def segments(self, step: Step, chunk: int) -> list[Segment]:
        """Where an attend's set lies: history joined in memory order, the running chunk's blocks by token span."""
        history: dict[tuple[int, int], list[Run]] = {}
        out: list[Segment] = []
        for cell in self.cells(step):
            recv, runs = self._place(cell)
            if cell[0] < chunk:
                history.setdefault((cell[2], recv), []).extend(runs)
            else:
                out.extend(self._spanned(cell, recv, runs))
        if step.c_hi > self.sched.meta.num_chunks:
            for g in range(len(self.pool.groups)):
                made = self.copies.get((self.sched.meta.num_chunks, self.node, g))
                history.setdefault((g, MAIN), []).extend(made.runs if made else [])
        joined = [
            Segment(group=g, recv=recv, start=start, size=size, pos=None)
            for (g, recv), runs in history.items()
            for start, size in join_runs(sorted(runs))
        ]
        return joined + out

    def _place(self, cell: Cell) -> tuple[int, list[Run]]:
        if cell in self.slot_cells:
            row, first = self.slot_cells[cell]
            return row, [(first, self.tokens[cell[0]][cell[1]])]
        return MAIN, self.copies[cell].runs

    def _spanned(self, cell: Cell, recv: int, runs: list[Run]) -> Iterator[Segment]:
        left = list(runs)
        for lo, hi in self.sched.spans(cell[0], cell[1]):
            pos = lo
            while pos < hi:
                start, size = left.pop(0)
                take = min(size, hi - pos)
                yield Segment(group=cell[2], recv=recv, start=start, size=take, pos=pos)
                if take < size:
                    left.insert(0, (start + take, size - take))
                pos += take

    def rows(self, segment: Segment, layer: int) -> Tensor:
        """[S, 2, heads, d] view of a segment's tokens in one layer."""
        if segment.recv == MAIN:
            kv = self.pool.groups[segment.group].kv[layer]
        else:
            kv = self.slots[segment.recv].rows(segment.group, layer, self.row_shape(segment.group))
        return kv[segment.start : segment.start + segment.size]

    def wire_parts(self, step: Step, layer: int) -> Iterator[tuple[int, list[Tensor]]]:
        """(group, views in wire order) of a set's memory in one layer; adjacent memory is joined."""
        by_group: dict[int, list[tuple[int, Run]]] = {}
        for cell in self.cells(step):
            recv, runs = self._place(cell)
            by_group.setdefault(cell[2], []).extend((recv, run) for run in runs)
        for g, places in by_group.items():
            views = []
            for recv, (start, size) in _join_places(places):
                views.append(self.rows(Segment(group=g, recv=recv, start=start, size=size, pos=None), layer))
            yield g, views

    def held_tokens(self) -> int:
        """Prompt tokens of the blocks and replicas that the directory holds now, counted per head group."""
        return sum(self.tokens[c][m] for (c, m, _), state in self.states.items() if state in (VALID, DRAINING))

    def certificate(self) -> list[dict[str, int]]:
        """What this node's own directory holds now: one entry per block."""
        return [
            {
                "chunk": c,
                "maker": m,
                "group": g,
                "state": state,
                "tokens": sum(size for _, size in self.copies[c, m, g].runs),
            }
            for (c, m, g), state in sorted(self.states.items())
        ]


def _join_places(places: list[tuple[int, Run]]) -> Iterator[tuple[int, Run]]:
    last: tuple[int, Run] | None = None
    for recv, (start, size) in places:
        if last is not None and last[0] == recv and last[1][0] + last[1][1] == start:
            last = recv, (last[1][0], last[1][1] + size)
            continue
        if last is not None:
            yield last
        last = recv, (start, size)
    if last is not None:
        yield last


def _tail(runs: list[Run], num_tokens: int | None) -> Iterator[Run]:
    skip = 0 if num_tokens is None else sum(size for _, size in runs) - num_tokens
    for start, size in runs:
        cut = min(skip, size)
        skip -= cut
        if size > cut:
            yield start + cut, size - cut


__all__ = ["MAIN", "Cell", "KvStore", "Segment", "Slots"]
