"""Where every copy is while MARS plans, and what that costs each node to the page."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from mcf.cluster import Topology
from mcf.mars import give_up, hop_matrix
from mcf.policies.common import windows
from mcf.schedule import Builder, Schedule
from mcf.schedule.builder import Range
from mcf.schedule.memory import block_bytes, own_bytes, reserve_bytes
from mcf.schedule.steps import OWNER, STEP

Holders = frozenset[int]
Runs = dict[int, list[Range]]
HeldRuns = list[tuple[Range, Holders]]


def runs_where(holders: list[Holders], is_in: Callable[[Holders], bool]) -> list[Range]:
    """Maximal ranges of chunks whose holders satisfy a condition."""
    out, at = [], 0
    for held, same in groupby(holders, key=is_in):
        size = len(list(same))
        if held:
            out.append((at, at + size))
        at += size
    return out


def equal_runs(holders: list[Holders]) -> HeldRuns:
    """Maximal ranges of chunks with the same holders."""
    out: HeldRuns = []
    at = 0
    for value, same in groupby(holders):
        size = len(list(same))
        out.append(((at, at + size), value))
        at += size
    return out


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Bytes of blocks, shares and reserves, from the schedule's own arithmetic."""

    block: list[list[int]]  # [C][N] a copy with pages of its own
    own: list[list[int]]  # [C+1][N] pages of own blocks, cumulative
    reserve: list[int]  # [N] decode reserve

    @classmethod
    def of(cls, b: Builder) -> "Costs":
        """Read them for a builder's pieces."""
        shell = Schedule(
            meta=b.meta,
            pieces=b.pieces,
            owners=np.empty(0, dtype=OWNER),
            routes=(),
            steps=np.empty(0, STEP),
            after=np.empty(0, "<i4"),
        )
        return cls(
            block=block_bytes(shell)[:, :, 0].tolist(),
            own=own_bytes(shell).tolist(),
            reserve=reserve_bytes(shell).tolist(),
        )


class Layout:
    """Holders of each block (maker, chunk), the owner (its maker) always among them; copies only ever go."""

    def __init__(self, b: Builder, costs: Costs, topology: Topology, ahead: int) -> None:
        self.b, self.costs, self.hops, self.ahead = b, costs, hop_matrix(topology), ahead
        self.has_relays = topology.has_relays
        self.num_nodes = b.meta.num_nodes
        self.holders: list[list[Holders]] = [[] for _ in range(self.num_nodes)]
        self.kept_bytes = [0] * self.num_nodes
        self.kept: list[set[tuple[int, int]]] = [set() for _ in range(self.num_nodes)]  # (chunk, maker)
        self.dropped: dict[int, set[tuple[int, int]]] = {}

    def add(self, maker: int, targets: Collection[int]) -> None:
        """Place the next chunk's block of a maker: on its owner and on targets."""
        chunk = len(self.holders[maker])
        if not self.b.has_tokens(maker, chunk) and chunk:
            self.holders[maker].append(self.holders[maker][-1])  # nothing to hold: runs stay whole
            return
        for node in targets:
            self.kept_bytes[node] += self.costs.block[chunk][maker]
            self.kept[node].add((chunk, maker))
        self.holders[maker].append(frozenset({maker, *targets}))

    def drop(self, node: int, maker: int, chunk: int) -> None:
        """Take a copy away from a node."""
        self.holders[maker][chunk] -= {node}
        self.kept_bytes[node] -= self.costs.block[chunk][maker]
        self.kept[node].discard((chunk, maker))
        self.dropped.setdefault(node, set()).add((maker, chunk))

    def shrink(self, r: int) -> None:
        """Leave at most r copies of every block; the farthest from the owner go."""
        for maker, blocks in enumerate(self.holders):
            for chunk, held in enumerate(blocks):
                if len(held) > r:
                    for node in give_up(maker, held, r, self.hops):
                        self.drop(node, maker, chunk)

    def shed(self, node: int, num_bytes: int) -> bool:
        """Drop a node's youngest copies until so many bytes are free; False when it has none."""
        far = self.hops[node].tolist()
        copies = sorted(self.kept[node], key=lambda copy: (copy[0], far[copy[1]], copy[1]), reverse=True)
        for chunk, maker in copies:
            if num_bytes <= 0:
                break
            self.drop(node, maker, chunk)
            num_bytes -= self.costs.block[chunk][maker]
        return bool(copies)

    def take_dropped(self) -> dict[int, Runs]:
        """What each node dropped since the last call, as chunk ranges per maker."""
        out: dict[int, Runs] = {}
        for node, cells in self.dropped.items():
            for maker, chunk in sorted(cells):
                ranges = out.setdefault(node, {}).setdefault(maker, [])
                if ranges and ranges[-1][1] == chunk:
                    ranges[-1] = (ranges[-1][0], chunk + 1)
                else:
                    ranges.append((chunk, chunk + 1))
        self.dropped = {}
        return out

    def copies(self, node: int) -> Runs:
        """Copies that a node still holds of other makers' blocks, as chunk ranges per maker."""
        makers = (m for m in range(self.num_nodes) if m != node)
        return {m: runs for m in makers if (runs := runs_where(self.holders[m], lambda held: node in held))}

    def used_bytes(self, chunk: int, needers: Iterable[int]) -> list[int]:
        """[N] bytes in use in a chunk's loop, its new blocks streamed to all needers: no less than a replay finds."""
        costs = self.costs
        slots = self._slot_bytes(chunk, list(needers), self.holders)
        return [
            costs.own[chunk + 1][n] + costs.reserve[n] + self.kept_bytes[n] + slots[n] for n in range(self.num_nodes)
        ]

    def bare_slot_bytes(self, chunk: int, needers: Iterable[int]) -> list[int]:
        """[N] bytes of slots in a chunk's loop if there were no copies at all."""
        bare = [[frozenset({m})] * chunk for m in range(self.num_nodes)]
        return self._slot_bytes(chunk, list(needers), bare)

    def _slot_bytes(self, chunk: int, needers: list[int], holders: list[list[Holders]]) -> list[int]:
        """History one layer ahead lives in the whole loop; of the rest, at most `stream_slots` makers' at a time."""
        page, early = self.b.meta.page_bytes, Counter[int]()
        late: dict[int, Counter[int]] = {n: Counter() for n in needers}
        for maker, blocks in enumerate(holders):
            for run, held in equal_runs(blocks[:chunk]):
                size = sum(self._pages(part, maker) for part in windows(self.b, run, maker))
                for n in needers:
                    if n not in held:
                        late[n][maker] += 0 if self.ahead else size
                        early[n] += size * (self.ahead + 1) if self.ahead else 0
            new = self._pages((chunk, chunk + 1), maker)
            for n in needers:
                if n != maker:
                    late[n][maker] += new
        return [page * (early[n] + self._late_pages(n, chunk, late.get(n, Counter()))) for n in range(self.num_nodes)]

    def _late_pages(self, node: int, chunk: int, demand: Counter[int]) -> int:
        """What is forwarded is received early, and so is what no attend waits for: then all of it counts."""
        sizes = sorted(demand.values(), reverse=True)
        in_turn = self.b.has_tokens(node, chunk) and not self.has_relays
        return sum(sizes[: self.b.meta.stream_slots] if in_turn else sizes)

    def _pages(self, chunks: Range, maker: int) -> int:
        return self.b.meta.pages(self.b.tokens_in(chunks, (maker, maker + 1)))
