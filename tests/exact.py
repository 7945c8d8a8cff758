"""The exact oracle: the placement problem of small instances as LP and MILP, solved by HiGHS.

Per shard s (made in chunk i by its owner), node n and chunk c: resident x, fetched f, served by another node m: a.

    x + f + sum_m a = 1        a[m] <= x + f at m        a[m] <= u[n, m, c], a binary contact: pays queries and states
    x(c + 1) <= x(c) + f(c)    x = 1 at the owner        sum of x over a node's shards <= its budget
    T_c >= computing and inbound bytes / BW of each node and chunk;  minimise sum of T_c
"""

from dataclasses import dataclass
from itertools import product

import highspy
import numpy as np

from mcf.mars import Rates, Setting, T_linear


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Seconds of the best plan found, and the bound that is proven."""

    value: float
    bound: float


def fetch_only(s: Setting, rates: Rates) -> Optimum:
    """The paper's problem (26)-(29): history is held or fetched."""
    return _Problem(s, rates, can_route=False).solve(60.0)


def with_routing(s: Setting, rates: Rates, *, seconds: float) -> Optimum:
    """The same, where queries may go to whoever holds the history instead."""
    return _Problem(s, rates, can_route=True).solve(seconds)


class _Problem:
    def __init__(self, s: Setting, rates: Rates, *, can_route: bool) -> None:
        self.s, self.rates, self.can_route = s, rates, can_route
        self.model = highspy.Highs()
        self.model.setOptionValue("output_flag", False)
        self.model.setOptionValue("threads", 1)
        self.share = s.B / s.N * float(s.m_t)  # bytes of a shard, all layers
        self.unit = 1e-3  # seconds are counted in milliseconds, shards in shards: numbers near one
        self.shards = list(product(range(s.C), range(s.N)))
        self._variables()
        self._cover()
        self._memory()
        self._times()

    def solve(self, seconds: float) -> Optimum:
        self.model.setOptionValue("time_limit", seconds)
        self.model.setOptionValue("mip_rel_gap", 1e-4)
        self.model.minimize(sum(self.T[1:], self.T[0]))
        info = self.model.getInfo()
        bound = info.mip_dual_bound if self.can_route else info.objective_function_value
        return Optimum(value=info.objective_function_value * self.unit, bound=bound * self.unit)

    def _add(self, hi: float = 1.0) -> "highspy.highs_var":
        return self.model.addVariable(lb=0.0, ub=hi)

    def _variables(self) -> None:
        N, C, model = self.s.N, self.s.C, self.model
        self.T = [self._add(highspy.kHighsInf) for _ in range(C)]
        self.x, self.f, self.a = {}, {}, {}
        for (i, o), n, c in product(self.shards, range(N), range(C)):
            if c < i or n == o:
                continue
            self.x[i, o, n, c] = self._add(1.0 if c > i else 0.0)
            self.f[i, o, n, c] = self._add()
            for m in range(N) if self.can_route else ():
                if m != n:
                    self.a[i, o, n, m, c] = self._add()
        pairs = [(n, m) for n, m in product(range(N), repeat=2) if n != m and self.can_route]
        self.u = {(n, m, c): model.addBinary() for (n, m), c in product(pairs, range(C))}

    def _others(self, n: int) -> list[int]:
        return [m for m in range(self.s.N) if m != n] if self.can_route else []

    def _cover(self) -> None:
        model = self.model
        for (i, o, n, c), x in self.x.items():
            served = [self.a[i, o, n, m, c] for m in self._others(n)]
            model.addConstr(sum(served, x + self.f[i, o, n, c]) == 1)
            if (i, o, n, c + 1) in self.x:
                model.addConstr(self.x[i, o, n, c + 1] <= x + self.f[i, o, n, c])
        for (i, o, n, m, c), a in self.a.items():
            model.addConstr(a <= self.u[n, m, c])
            if m != o:
                model.addConstr(a <= self.x[i, o, m, c] + self.f[i, o, m, c])

    def _memory(self) -> None:
        """Budget in shards, less the shards that a node owns by then."""
        for n, c in product(range(self.s.N), range(self.s.C)):
            kept = [x for (_, _, node, chunk), x in self.x.items() if (node, chunk) == (n, c)]
            if self.s.S_node is not None and kept:
                self.model.addConstr(sum(kept[1:], kept[0]) <= self.s.S_node / self.share - (c + 1))

    def _times(self) -> None:
        s, rates, n_tokens = self.s, self.rates, self.s.B / self.s.N
        link = s.deg * rates.BW * self.unit
        query, state = (n_tokens * s.shape.num_layers * size / link for size in (s.q, s.p))
        dense = T_linear(s.shape, n=n_tokens, rates=rates) / self.unit
        pair = 4.0 * s.shape.num_q_heads * s.shape.head_dim * s.shape.num_layers / rates.P / self.unit
        for n, c in product(range(s.N), range(s.C)):
            parts = [f * (self.share / link) for (_, _, node, chunk), f in self.f.items() if (node, chunk) == (n, c)]
            for m in self._others(n):
                parts += [self.u[n, m, c] * state, self.u[m, n, c] * query]
            self.model.addConstr(self.T[c] >= sum(parts[1:], parts[0]))
            work = [a * self._pairs(i, c) for (i, _, node, m, chunk), a in self.a.items() if (m, chunk) == (n, c)]
            away = [a * -self._pairs(i, c) for (i, _, node, m, chunk), a in self.a.items() if (node, chunk) == (n, c)]
            own = s.N * sum(self._pairs(i, c) for i in range(c + 1))
            total = [w * pair for w in work + away]
            self.model.addConstr(self.T[c] - dense - own * pair >= sum(total[1:], total[0]) if total else
                                 self.T[c] >= dense + own * pair)  # fmt: skip

    def _pairs(self, i: int, c: int) -> float:
        """Visible pairs of one node's queries of chunk c and one shard of chunk i."""
        n = self.s.B / self.s.N
        return n * n if i < c else float(np.float64(n) * n / 2)
