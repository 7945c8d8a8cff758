"""`ulysses`: KV is split by heads. Each node owns its heads' KV of all tokens of its team; queries and states travel.

gcd(KV heads, nodes) nodes, one for each group of heads, make a team; N / gcd teams share the prompt by tokens, as
`pass-q` does. So shares are always equal: 8 nodes and 8 KV heads make one team, 8 nodes and 2 heads four teams of two,
3 nodes and 8 heads three teams of one.
"""

import math
from dataclasses import replace
from itertools import pairwise, product

from mcf.policies.common import Sight, Trees
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, cut, head_tail
from mcf.schedule.builder import Range
from mcf.schedule.steps import KEEP


def plan(request: PlanRequest) -> Schedule:
    """Write the ulysses schedule: node n owns head group n % G of what its team makes, and attends it for everybody."""
    return _Planner(request).plan()


class _Planner:
    def __init__(self, request: PlanRequest) -> None:
        heads, self.N = request.shape.num_kv_heads, request.num_nodes
        self.G = math.gcd(heads, self.N)
        cuts = tuple(range(0, heads + 1, heads // self.G))
        self.spans = list(pairwise(cuts))
        meta = replace(request.meta("ulysses"), head_cuts=cuts)
        pieces = cut(request.prompt_tokens, request.chunk_tokens, self.N, head_tail)
        cells = product(range(meta.num_chunks), range(self.N), range(self.G))
        self.b = Builder(meta, pieces, {(c, m, g): self._team(m)[0] + g for c, m, g in cells})
        self.sight = Sight(self.b)
        self.trees = Trees(request.cluster.topology)

    def plan(self) -> Schedule:
        for chunk in range(self.b.num_chunks):
            for node in range(self.N):
                self._retire(node, chunk)
                self._make(node, chunk)
            self._attend(chunk)
        for node in range(self.N):
            self._retire(node, self.b.num_chunks)
        self.b.decode()
        return self.b.build()

    def _team(self, node: int) -> Range:
        first = node // self.G * self.G
        return first, first + self.G

    def _retire(self, node: int, chunk: int) -> None:
        """Of the chunk before, drop the heads that others own: they have them now."""
        lo, hi = self.spans[node % self.G]
        others = [span for span in ((0, lo), (hi, self.spans[-1][1])) if span[0] < span[1]]
        for retire in (self.b.drain, self.b.free) if chunk else ():
            for heads in others:
                retire(node, chunk, chunks=(chunk - 1, chunk), makers=(node, node + 1), heads=heads)

    def _make(self, node: int, chunk: int) -> None:
        """New KV goes to the team by heads, queries to all who hold what they may see."""
        b, own, new = self.b, (node, node + 1), (chunk, chunk + 1)
        b.produce(node, chunk)
        for g, heads in enumerate(self.spans):
            b.send_kv(node, [self._team(node)[0] + g], chunk, chunks=new, makers=own, hold=KEEP, heads=heads)
        for g, heads in enumerate(self.spans):
            holders = [n for n in range(g, self.N, self.G) if b.tokens_in(self._visible(node, n, chunk), self._team(n))]
            b.send_query(node, holders, chunk, heads=heads, route=self.trees.route(node, holders, chunk))

    def _attend(self, chunk: int) -> None:
        """Each node serves everybody, itself first; then the states of a query's head groups and teams merge."""
        b = self.b
        states: list[list[int | None]] = [[] for _ in range(self.N)]
        for node in range(self.N):
            heads, makers = self.spans[node % self.G], self._team(node)
            for q in (node, *self.trees.arrivals[node]):
                chunks = self._visible(q, node, chunk)
                state = b.attend(node, chunk, q=q, chunks=chunks, makers=makers, heads=heads)
                back = self.trees.back(node, q, chunk)
                states[q].append(state if q == node else b.send_state(node, [q], chunk, of=state, route=back))
        for q in range(self.N):
            b.merge(q, chunk, states[q])

    def _visible(self, q: int, node: int, chunk: int) -> Range:
        """Chunks of which the queries of node q may see anything that a node's team has made."""
        return 0, max(self.sight.chunks(q, maker, chunk)[1] for maker in range(*self._team(node)))
