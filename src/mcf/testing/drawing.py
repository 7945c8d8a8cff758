"""Random legal schedules, made only with the public Builder: every way in which a block can reach a query.

Per chunk the visible blocks are cut into rectangles (tiles); each node attends each tile once: at home, from a kept
copy, from a stream (0 or 1 layers ahead), or at a remote node that holds it.
"""

from collections.abc import Iterable
from random import Random

import numpy as np

from mcf.cluster import Topology
from mcf.schedule import Builder, Schedule, ScheduleMeta
from mcf.schedule.builder import Owners, Range
from mcf.schedule.schedule import Route
from mcf.schedule.steps import COMPUTE, KEEP, NIC, STREAM
from mcf.testing.recipe import Cell, Recipe, Tile, random_pieces

Transfer = tuple[int, list[int], Tile, int, int]  # source, receivers, blocks, hold, ahead


def random_schedule(recipe: Recipe) -> Schedule:
    """Draw one legal schedule."""
    return _Draw(recipe).schedule()


class _Draw:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe, self.rng = recipe, Random(recipe.seed)
        self.nodes = range(recipe.num_nodes)
        self.topology = Topology.parse(recipe.topology, recipe.num_nodes)
        pieces = random_pieces(recipe, self.rng)
        self.tokens = np.zeros((int(pieces["chunk"].max()) + 1, recipe.num_nodes), dtype=np.int64)
        np.add.at(self.tokens, (pieces["chunk"], pieces["node"]), pieces["hi"] - pieces["lo"])
        self.cuts = recipe.head_cuts or (0, recipe.num_kv_heads)
        self.owner = self._draw_owners()
        moved = {cell: o for cell, o in self.owner.items() if o != cell[1]}
        self.b = Builder(self._meta(), pieces, moved)
        self.held: list[set[Cell]] = [set() for _ in self.nodes]
        self.draining: list[set[Cell]] = [set() for _ in self.nodes]
        self.here: list[set[Cell]] = []
        self.reachable: list[set[Cell]] = []

    def schedule(self) -> Schedule:
        """Write all chunks, the converge section and the decode template."""
        for chunk in range(self.b.num_chunks):
            self._chunk(chunk)
        self._retire(self.b.num_chunks)
        if self.recipe.max_new_tokens:
            self.b.decode()
        return self.b.build()

    # --- the frame ---

    def _draw_owners(self) -> Owners:
        groups = range(len(self.cuts) - 1)
        cells = [(int(c), int(m), g) for c, m in np.argwhere(self.tokens > 0) for g in groups]
        moves = self.recipe.hand_over
        return {cell: self.rng.choice(self.nodes) if moves and self.rng.random() < 0.4 else cell[1] for cell in cells}

    def _meta(self) -> ScheduleMeta:
        r = self.recipe
        shares = np.zeros(r.num_nodes)
        for (c, m, g), owner in self.owner.items():
            shares[owner] += self.tokens[c, m] * (self.cuts[g + 1] - self.cuts[g]) / r.num_kv_heads
        return ScheduleMeta(
            policy="random", num_nodes=r.num_nodes, prompt_tokens=r.prompt_tokens, chunk_tokens=r.chunk_tokens,
            num_layers=r.num_layers, num_q_heads=r.num_kv_heads * r.group_heads, num_kv_heads=r.num_kv_heads,
            head_dim=r.head_dim, page_tokens=r.page_tokens, stream_slots=r.stream_slots, kv_bytes=2,
            max_new_tokens=r.max_new_tokens, topology=r.topology, head_cuts=self.cuts,
            shares=() if r.even and not r.hand_over else tuple(round(x) for x in shares.tolist()),
        )  # fmt: skip

    def _chunk(self, chunk: int) -> None:
        self._retire(chunk)
        made = [{cell for cell in self.owner if cell[:2] == (chunk, n)} for n in self.nodes]
        self.here = [self.held[n] - self.draining[n] | made[n] for n in self.nodes]
        self.solid = [set(cells) for cells in self.here]
        self.touched: list[set[Cell]] = [set() for _ in self.nodes]
        self.transfers: list[Transfer] = []
        self._hand_over(chunk)
        self._replicate(chunk)
        tiles = self._tiles(chunk)
        plan = [(n, tile) for n in self.nodes if self.b.has_tokens(n, chunk) for tile in self._visible(n, chunk, tiles)]
        self._bring(chunk, plan)
        self._emit(chunk, plan)
        for n in self.nodes:
            self.held[n] |= made[n]

    # --- copies that come and go ---

    def _retire(self, chunk: int) -> None:
        """Drain and free copies of other owners' blocks: some before a chunk, all that are left at the end."""
        last = chunk == self.b.num_chunks
        for n in self.nodes:
            copies = sorted(cell for cell in self.held[n] if self.owner[cell] != n)
            new = [c for c in copies if c not in self.draining[n] and (last or self.rng.random() < 0.25)]
            for cell in new:
                self.b.drain(n, chunk, **self._cell_set(cell))
            self.draining[n] |= set(new)
            gone = [c for c in sorted(self.draining[n]) if last or self.rng.random() < 0.6]
            for cell in gone:
                self.b.free(n, chunk, **self._cell_set(cell))
            self.draining[n] -= set(gone)
            self.held[n] -= set(gone)

    def _cell_set(self, cell: Cell) -> dict[str, Range]:
        c, m, g = cell
        return {"chunks": (c, c + 1), "makers": (m, m + 1), "heads": (self.cuts[g], self.cuts[g + 1])}

    def _cell_tile(self, cell: Cell) -> Tile:
        return Tile(cells=frozenset([cell]), **self._cell_set(cell))

    def _hand_over(self, chunk: int) -> None:
        """Send this chunk's blocks that others own to their owners."""
        for cell in sorted(cell for cell in self.owner if cell[0] == chunk and self.owner[cell] != cell[1]):
            extra = [n for n in self.nodes if self.recipe.multicast and self.rng.random() < 0.2]
            if not self._transfer(cell[1], [self.owner[cell], *extra], self._cell_tile(cell), KEEP, 0):
                assert self._transfer(cell[1], [self.owner[cell]], self._cell_tile(cell), KEEP, 0), cell

    def _replicate(self, chunk: int) -> None:
        """Keep copies of held blocks elsewhere, whether anyone needs them or not."""
        for n in self.nodes:
            for cell in sorted(self.solid[n]):
                if self.rng.random() < 0.12:
                    ahead = self._draw_ahead(chunk, (cell[0], cell[0] + 1))
                    self._transfer(n, self._draw_nodes(), self._cell_tile(cell), KEEP, ahead)

    def _draw_nodes(self) -> list[int]:
        count = self.rng.randint(1, len(self.nodes)) if self.recipe.multicast else 1
        return self.rng.sample(self.nodes, count)

    def _draw_ahead(self, chunk: int, chunks: Range) -> int:
        return self.rng.randint(0, min(1, self.recipe.stream_slots - 1)) if chunks[1] <= chunk else 0

    def _transfer(self, source: int, dsts: Iterable[int], tile: Tile, hold: int, ahead: int) -> bool:
        """Note a transfer if every node that it reaches has room for every block of it."""
        targets = sorted({d for d in dsts if d != source})
        reached = {b for _, b in self._route(source, targets)} if len(targets) > 1 else set(targets)
        blocked = any(tile.cells & (self.held[n] | self.here[n] | self.touched[n]) for n in reached)
        late = hold == STREAM and not ahead and not self.recipe.relay_late
        blocked |= late and len(targets) > 1 and any(a != source for a, _ in self._route(source, targets))
        if blocked or not targets or not tile.cells <= self.solid[source]:
            return False
        for n in reached:
            self.touched[n] |= tile.cells
            self.here[n] |= tile.cells
            if hold == KEEP:
                self.held[n] |= tile.cells
        self.transfers.append((source, targets, tile, hold, ahead))
        return True

    def _route(self, source: int, targets: list[int]) -> Route:
        return (
            self.topology.route(source, targets[0]) if len(targets) == 1 else self.topology.multicast(source, targets)
        )

    # --- who attends what, where ---

    def _tiles(self, chunk: int) -> list[Tile]:
        """Cut all blocks up to this chunk into rectangles."""
        return [
            self._tile((c_lo, c_hi), (m_lo, m_hi), (h_lo, h_hi))
            for c_lo, c_hi in self._ranges(chunk + 1)
            for m_lo, m_hi in self._ranges(len(self.nodes))
            for h_lo, h_hi in ([(self.cuts[0], self.cuts[-1])] if self.rng.random() < 0.5 else self._head_groups())
        ]

    def _head_groups(self) -> list[Range]:
        return list(zip(self.cuts, self.cuts[1:], strict=False))

    def _ranges(self, end: int) -> list[Range]:
        inner = [i for i in range(1, end) if self.rng.random() < 0.7]
        return list(zip([0, *inner], [*inner, end], strict=True))

    def _tile(self, chunks: Range, makers: Range, heads: Range) -> Tile:
        inside = (
            (c, m, g)
            for c in range(*chunks)
            for m in range(*makers)
            for g in range(self.cuts.index(heads[0]), self.cuts.index(heads[1]))
        )
        return Tile(chunks=chunks, makers=makers, heads=heads, cells=frozenset(x for x in inside if x in self.owner))

    def _visible(self, node: int, chunk: int, tiles: list[Tile]) -> list[Tile]:
        """Tiles for one query node; split into single blocks where it holds a part only."""
        out = []
        for tile in tiles:
            mine = tile.cells & self.here[node]
            out += [tile] if mine in (tile.cells, frozenset()) else [self._cell_tile(c) for c in sorted(tile.cells)]
        return [tile for tile in out if tile.cells]

    def _bring(self, chunk: int, plan: list[tuple[int, Tile]]) -> None:
        """Move some of the missing tiles to the nodes that want them."""
        wanted: dict[Tile, list[int]] = {}
        for n, tile in plan:
            if not tile.cells <= self.here[n] and self.rng.random() < 0.7:
                wanted.setdefault(tile, []).append(n)
        for tile, nodes in wanted.items():
            sources = [n for n in self.nodes if tile.cells <= self.solid[n]]
            together = self.recipe.multicast and self.rng.random() < 0.6
            for dsts in [nodes] if together else [[n] for n in nodes]:
                if sources:
                    hold, ahead = self.rng.choice((KEEP, STREAM, STREAM)), self._draw_ahead(chunk, tile.chunks)
                    self._transfer(self.rng.choice(sources), dsts, tile, hold, ahead)

    def _homes(self, node: int, tile: Tile) -> list[int]:
        """Nodes where a node's queries can attend a tile; the node itself if it can."""
        able = [n for n in self.nodes if tile.cells <= self.here[n]]
        return [node] if node in able and self.rng.random() < 0.85 else able

    # --- rows ---

    def _emit(self, chunk: int, plan: list[tuple[int, Tile]]) -> None:
        jobs: list[tuple[int, int, Tile]] = []
        for n, tile in plan:
            parts = [tile] if self._homes(n, tile) else [self._cell_tile(c) for c in sorted(tile.cells)]
            jobs += [(self.rng.choice(self._homes(n, part)), n, part) for part in parts]
        early, late = self._split_sends(chunk)
        self._emit_sends(chunk, early)
        for n in self.nodes:
            self.b.produce(n, chunk)
        self._emit_queries(chunk, jobs)
        self._emit_sends(chunk, late)
        self._emit_attends(chunk, jobs)

    def _split_sends(self, chunk: int) -> tuple[list[int], list[int]]:
        """Some sends of earlier chunks stand before the chunk's dense work."""
        order = self.rng.sample(range(len(self.transfers)), len(self.transfers))
        early = [i for i in order if self.transfers[i][2].chunks[1] <= chunk and self.rng.random() < 0.3]
        return early, [i for i in order if i not in early]

    def _emit_sends(self, chunk: int, order: list[int]) -> None:
        for source, targets, tile, hold, ahead in (self.transfers[i] for i in order):
            self.b.send_kv(
                source, targets, chunk, chunks=tile.chunks, makers=tile.makers, heads=tile.heads, hold=hold,
                ahead=ahead, route=self._named_route(source, targets),
            )  # fmt: skip

    def _named_route(self, source: int, targets: list[int]) -> Route | None:
        """The direct link needs no name; half of the time it has one."""
        route = self._route(source, targets)
        return None if len(route) == 1 and self.rng.random() < 0.5 else route

    def _emit_queries(self, chunk: int, jobs: list[tuple[int, int, Tile]]) -> None:
        for q in self.nodes:
            homes = sorted({home for home, query, _ in jobs if query == q} - {q})
            if not homes:
                continue
            for dsts in [homes] if self.recipe.multicast and self.rng.random() < 0.5 else [[h] for h in homes]:
                self.b.send_query(q, dsts, chunk, route=self._named_route(q, dsts))

    def _emit_attends(self, chunk: int, jobs: list[tuple[int, int, Tile]]) -> None:
        inputs: dict[int, list[int | None]] = {q: [] for q in self.nodes}
        partial: dict[tuple[int, int], list[int | None]] = {}
        merged = {(home, q) for home, q, _ in jobs if home != q and self.rng.random() < 0.4}
        for home, q, tile in self.rng.sample(jobs, len(jobs)):
            row = self.b.attend(home, chunk, q=q, chunks=tile.chunks, makers=tile.makers, heads=tile.heads)
            if home == q:
                inputs[q].append(row)
            elif (home, q) in merged:
                partial.setdefault((home, q), []).append(row)
            else:
                inputs[q].append(self._send_state(home, q, chunk, row))
        for (home, q), rows in partial.items():
            merge = self.b.merge(home, chunk, rows, q=q, lane=self.rng.choice((COMPUTE, NIC)))
            inputs[q].append(self._send_state(home, q, chunk, merge))
        for q in self.nodes:
            if self.b.has_tokens(q, chunk):
                self.b.merge(q, chunk, inputs[q])

    def _send_state(self, home: int, q: int, chunk: int, row: int | None) -> int | None:
        return self.b.send_state(home, [q], chunk, of=row, route=self._named_route(home, [q]))
