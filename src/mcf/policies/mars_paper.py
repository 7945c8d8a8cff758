"""`mars-paper`: MARS as published (eq. 11, 15, 16, 29): copies while memory and reuse last, owner-only at the end.

A chunk of the plan: settle how many copies may live, in the last chunks fewer and fewer if asked; drop what is too
much; place the new blocks' copies where there is room; who has no copy of a block streams it from the nearest one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from mcf.mars import default_alpha, nearest_links, r, r_converge, r_mem, r_reuse, spread, targets
from mcf.mars.placement import Links
from mcf.policies.common import (
    Star,
    Trees,
    check_slots,
    receivers,
    rectangles,
    stars,
    start,
    windows,
)
from mcf.policies.layout import Costs, HeldRuns, Holders, Layout, Runs, equal_runs
from mcf.policies.request import PlanRequest
from mcf.schedule import Schedule, head_tail
from mcf.schedule.builder import Range
from mcf.schedule.steps import KEEP, STREAM


def plan(request: PlanRequest) -> Schedule:
    """Write the paper's MARS schedule; budgets hold at least the owner-only layout (`policies.plan` checks that)."""
    return _Planner(request).plan()


@dataclass(frozen=True, kw_only=True)
class _Hop:
    """Blocks of one maker that a node sends to neighbours, who all keep them or all stream them."""

    star: Star
    maker: int
    chunks: Range
    hold: int
    ahead: int


class _Planner:
    def __init__(self, request: PlanRequest) -> None:
        check_slots("mars-paper", request, forwards=request.cluster.topology.has_relays)
        self.request, self.topology = request, request.cluster.topology
        self.N = request.num_nodes
        self.b = start("mars-paper", request, head_tail)
        self.C = self.b.num_chunks
        self.alpha = default_alpha(N=self.N, C=self.C) if request.alpha is None else request.alpha
        self.costs = Costs.of(self.b)
        self.layout = Layout(self.b, self.costs, self.topology, request.ahead)
        self.order = [spread(owner, self.layout.hops) for owner in range(self.N)]
        self.trees = Trees(self.topology)
        self.r_mem = self.N
        self.forests: dict[tuple[Holders, tuple[int, ...], int], Links] = {}

    def plan(self) -> Schedule:
        for chunk in range(self.C):
            needers = receivers(self.b, self.topology, chunk)
            self._settle(chunk, needers)
            self._place(chunk, needers)
            self._write(chunk, needers)
        for node in range(self.N):
            self._retire(node, self.C, self.layout.copies(node))
        self.b.decode()
        return self.b.build()

    # --- decide ---

    def _settle(self, chunk: int, needers: list[int]) -> None:
        """Lower the memory-bounded factor (eq. 11, 16) and drop copies until every node fits (eq. 10), to the page."""
        K = self._room_for_blocks(chunk, needers)
        M_hist = self.b.tokens_in((0, chunk + 1), (0, self.N)) * self.request.shape.kv_token_bytes
        self._lower(min(self.r_mem, r_mem(K=K, M_hist=M_hist), self._ramp(chunk)))
        while self.r_mem > 1:
            over = [(n, -free) for n, free in enumerate(self._free_bytes(chunk, needers)) if free < 0]
            if not over:
                return
            shed = [self.layout.shed(n, missing) for n, missing in over]
            if not all(shed):
                self._lower(self.r_mem - 1)

    def _ramp(self, chunk: int) -> int:
        """The most copies that convergence leaves in a chunk."""
        return r_converge(c=chunk + 1, C=self.C, N=self.N, W=self.request.drain_chunks)

    def _lower(self, factor: int) -> None:
        self.r_mem = factor
        self.layout.shrink(factor)

    def _room_for_blocks(self, chunk: int, needers: list[int]) -> list[int]:
        """[N] K_n: the budget net of slots and decode reserve; no more than one copy of everything can fill."""
        everything = sum(map(sum, self.costs.block[: chunk + 1]))
        slots = self.layout.bare_slot_bytes(chunk, needers)
        out = []
        for n, budget in enumerate(self.request.cluster.kv_budgets):
            own = self.costs.own[chunk + 1][n]
            net = everything if budget is None else budget - slots[n] - self.costs.reserve[n]
            out.append(max(own, min(net, everything)))
        return out

    def _free_bytes(self, chunk: int, needers: list[int]) -> list[int]:
        used = self.layout.used_bytes(chunk, needers)
        budgets = self.request.cluster.kv_budgets
        return [2**62 if budget is None else budget - bytes_ for budget, bytes_ in zip(budgets, used, strict=True)]

    def _place(self, chunk: int, needers: list[int]) -> None:
        """Choose the nodes that keep this chunk's new blocks."""
        reuse = r_reuse(c=chunk + 1, C=self.C, N=self.N, alpha=self.alpha)
        factor = r(N=self.N, r_mem=min(self.r_mem, self._ramp(chunk + 1)), r_reuse=reuse)
        free = self._free_bytes(chunk, needers) if factor > 1 else [0] * self.N
        for step in range(self.N):
            maker = (chunk + step) % self.N  # nobody's blocks always come first
            size = self.costs.block[chunk][maker]
            roomy = {n for n in range(self.N) if free[n] >= size > 0}
            chosen = targets(self.order[maker], factor, roomy)
            for n in chosen:
                free[n] -= size
            self.layout.add(maker, chosen)

    # --- write ---

    def _write(self, chunk: int, needers: list[int]) -> None:
        for node, dropped in sorted(self.layout.take_dropped().items()):
            self._retire(node, chunk, dropped)
        runs = [equal_runs(blocks[:chunk]) for blocks in self.layout.holders]
        old = self._old_hops(chunk, runs, needers)
        new = self._new_hops(chunk, needers)
        for node in range(self.N):
            mine = sorted((h for h in old if h.star.node == node), key=lambda h: h.star.depth)
            fresh = sorted((h for h in new if h.star.node == node), key=lambda h: h.star.depth)
            self._send(chunk, (h for h in mine if not h.star.depth))
            self.b.produce(node, chunk)
            self._send(chunk, (h for h in fresh if not h.star.depth))
            self._send(chunk, (h for h in mine + fresh if h.star.depth))
            self._attend(node, chunk, runs)

    def _retire(self, node: int, chunk: int, runs: Runs) -> None:
        sets = rectangles(runs)
        for chunks, makers in sets:
            self.b.drain(node, chunk, chunks=chunks, makers=makers)
        for chunks, makers in sets:
            self.b.free(node, chunk, chunks=chunks, makers=makers)

    def _old_hops(self, chunk: int, runs: list[HeldRuns], needers: list[int]) -> list[_Hop]:
        """Older blocks are streamed, a layer ahead, to the nodes that hold no copy, from the nearest that do."""
        return [
            _Hop(star=star, maker=maker, chunks=run, hold=STREAM, ahead=self.request.ahead)
            for maker in range(self.N)
            for run, held in runs[maker]
            for star in stars(self._forest(held, needers, self.trees.number(maker, chunk)), held)
        ]

    def _new_hops(self, chunk: int, needers: list[int]) -> list[_Hop]:
        """A new block goes to the nodes that keep it and to those that only stream it."""
        out = []
        for maker in range(self.N):
            keepers = self.layout.holders[maker][chunk] - {maker}
            tree = self.trees.number(maker, chunk)
            for star in stars(self._forest(frozenset({maker}), {*needers, *keepers}, tree), [maker]):
                for hold, is_kept in ((KEEP, True), (STREAM, False)):
                    part = Star(star.depth, star.node, [n for n in star.children if (n in keepers) == is_kept])
                    out.append(_Hop(star=part, maker=maker, chunks=(chunk, chunk + 1), hold=hold, ahead=0))
        return out

    def _send(self, chunk: int, hops: Iterable[_Hop]) -> None:
        for hop in hops:
            makers = (hop.maker, hop.maker + 1)
            for part in windows(self.b, hop.chunks, hop.maker) if hop.star.children else ():
                self.b.send_kv(
                    *(hop.star.node, hop.star.children, chunk),
                    chunks=part,
                    makers=makers,
                    hold=hop.hold,
                    ahead=hop.ahead,
                )

    def _attend(self, node: int, chunk: int, runs: list[HeldRuns]) -> None:
        """Attend what is held, then each other maker's arrivals in their order; then merge."""
        late: dict[int, int] = {}
        held: Runs = {}
        for maker in range(self.N):
            held[maker], late[maker] = _split(node, runs[maker])
        new = (chunk, chunk + 1)
        sets = rectangles(held)
        own = (0, chunk), (node, node + 1)
        if own in sets or not chunk:
            sets = [((0, chunk + 1), own[1]), *(s for s in sets if s != own)]
        else:
            sets.append((new, own[1]))
        states = [self.b.attend(node, chunk, chunks=chunks, makers=makers) for chunks, makers in sets]
        for maker in self.trees.attends(node, chunk):
            arrived = late[maker], chunk + 1
            states.append(self.b.attend(node, chunk, chunks=arrived, makers=(maker, maker + 1)))
        self.b.merge(node, chunk, states)

    def _forest(self, held: Holders, needers: Iterable[int], tree: int) -> Links:
        key = held, tuple(sorted(set(needers) - held)), tree
        if key not in self.forests:
            self.forests[key] = nearest_links(self.topology, held, key[1], tree=tree) if key[1] else ()
        return self.forests[key]


def _split(node: int, runs: HeldRuns) -> tuple[list[Range], int]:
    """A maker's history: what a node holds from the start on, and the chunk from which the rest arrives.

    Where a node holds it in pieces, all of it is attended as one set when the rest has arrived: fewer kernel calls.
    """
    end = 0
    for (lo, hi), held in runs:
        if node in held:
            if lo != end:
                return [], 0
            end = hi
    return [(0, end)] if end else [], end
