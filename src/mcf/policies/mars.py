"""`mars`: MARS with a group size for each chunk (`mcf.mars.nested`): hold, fetch or route.

In a chunk with groups of g nodes, the node of rank n attends the blocks of makers of rank o = n (mod g) for its whole
group: those it holds, those it streams from their owners, and the new ones. Queries of the group come to it, partial
states go back. Ranks follow the topology's walk, so that a group is a tile: on a switch they are the nodes' numbers.
"""

from collections.abc import Iterable

from mcf.mars import Job, Levels, NestedChunk, nest
from mcf.policies.common import Sight, Trees, check_slots, rectangles, start
from mcf.policies.request import PlanRequest
from mcf.schedule import Schedule, head_tail
from mcf.schedule.builder import Range
from mcf.schedule.steps import KEEP, STREAM


def plan(request: PlanRequest) -> Schedule:
    """Write the schedule of the decisions; where nothing fits, the one that needs least (`policies.plan` judges it)."""
    return _Planner(request).plan()


class _Planner:
    def __init__(self, request: PlanRequest) -> None:
        check_slots("mars", request, forwards=False)
        self.request, self.N = request, request.num_nodes
        self.b = start("mars", request, head_tail)
        self.sight, self.levels = Sight(self.b), Levels(self.N)
        self.has_relays = request.cluster.topology.has_relays
        self.arrivals = Trees(request.cluster.topology).arrivals
        self.walk = request.cluster.topology.walk
        self.rank = [self.walk.index(node) for node in range(self.N)]

    def plan(self) -> Schedule:
        decided = nest(job_of(self.request))
        for chunk in decided:
            for node in range(self.N):
                self._retire(node, chunk.chunk, chunk.dropped)
                self._make(node, chunk)
            self._attend(chunk)
        for node in range(self.N):
            self._retire(node, self.b.num_chunks, _after(decided[-1]))
        self.b.decode()
        return self.b.build()

    def _retire(self, node: int, chunk: int, ranges: Iterable[Iterable[Range]]) -> None:
        """Copies that go before a chunk: no work on them any more, then their memory."""
        by_level = [list(runs) for runs in ranges]
        runs = {m: by_level[self._level(node, m)] for m in range(self.N) if m != node}
        for retire in (self.b.drain, self.b.free):
            for chunks, makers in rectangles(runs):
                retire(node, chunk, chunks=chunks, makers=makers)

    def _level(self, node: int, maker: int) -> int:
        return self.levels.of(self.rank[node], self.rank[maker])

    def _class(self, node: int, g: int) -> list[int]:
        """Makers of a node's class, itself first, then as their ranks stand before its own."""
        return [self.walk[(self.rank[node] - step) % self.N] for step in range(0, self.N, g)]

    def _group(self, node: int, g: int) -> list[int]:
        """Nodes of a node's group, itself among them."""
        first = self.rank[node] // g * g
        return self.walk[first : first + g]

    def _make(self, node: int, decided: NestedChunk) -> None:
        """History that others lack, a layer ahead; the dense work; queries to the group; the new block to the class."""
        b, chunk, g = self.b, decided.chunk, decided.g
        others = [n for n in self._class(node, g) if n != node]
        self._send_history(node, decided, others)
        b.produce(node, chunk)
        b.send_query(node, [n for n in self._group(node, g) if self._asked(node, n, decided)], chunk)
        kept = [n for n in others if decided.keeps_new[self._level(n, node)]]
        for hold, ends in ((KEEP, kept), (STREAM, [n for n in others if n not in kept])):
            self._send(node, ends, chunk, (chunk, chunk + 1), hold, 0)

    def _send_history(self, node: int, decided: NestedChunk, others: list[int]) -> None:
        chunk = decided.chunk
        for level, resident in enumerate(decided.resident):
            ends = [n for n in others if self._level(n, node) == level]
            for run in self.levels.missing(resident, chunk):
                self._send(node, ends, chunk, run, STREAM, self.request.ahead)

    def _send(self, node: int, ends: list[int], chunk: int, chunks: Range, hold: int, ahead: int) -> None:
        """One multicast; where nodes relay, a way of its own to each: nobody on the way gets a copy."""
        for some in [[n] for n in ends] if self.has_relays else [ends]:
            self.b.send_kv(node, some, chunk, chunks=chunks, makers=(node, node + 1), hold=hold, ahead=ahead)

    def _asked(self, q: int, node: int, decided: NestedChunk) -> bool:
        """Whether a node of the group holds anything that the queries of q may see."""
        makers = self._class(node, decided.g)
        return any(self.b.tokens_in(self.sight.chunks(q, m, decided.chunk), (m, m + 1)) for m in makers)

    def _attend(self, decided: NestedChunk) -> None:
        """Own queries first, then those of the group, near ones first; a node sends one state for each."""
        b, chunk, g = self.b, decided.chunk, decided.g
        states: list[list[int | None]] = [[] for _ in range(self.N)]
        for node in range(self.N):
            group = self._group(node, g)
            for q in (node, *(n for n in self.arrivals[node] if n in group)):
                parts = [
                    b.attend(node, chunk, q=q, chunks=self.sight.chunks(q, m, chunk), makers=(m, m + 1))
                    for m in self._class(node, g)
                ]
                if q == node:
                    states[q] += parts
                    continue
                found = [part for part in parts if part is not None]
                whole = b.merge(node, chunk, found, q=q) if len(found) > 1 else next(iter(found), None)
                states[q].append(b.send_state(node, [q], chunk, of=whole))
        for q in range(self.N):
            b.merge(q, chunk, states[q])


def _after(last: NestedChunk) -> list[list[Range]]:
    """Copies that are left after the last chunk."""
    new = (last.chunk, last.chunk + 1)
    return [[*runs, new] if keeps else [*runs] for runs, keeps in zip(last.resident, last.keeps_new, strict=True)]


def job_of(request: PlanRequest) -> Job:
    """The request in the numbers of closed forms; the smallest budget counts for all nodes."""
    budgets = [budget for budget in request.cluster.kv_budgets if budget is not None]
    return Job(
        shape=request.shape,
        topology=request.cluster.topology,
        S=request.prompt_tokens,
        B=request.chunk_tokens,
        stream_slots=request.stream_slots,
        max_new_tokens=request.max_new_tokens,
        S_node=min(budgets, default=None),
        alpha=request.alpha,
        drain_chunks=request.drain_chunks,
        rates=request.rates,
    )
