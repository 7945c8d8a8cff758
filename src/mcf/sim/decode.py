"""Decode in model time: the template of a schedule, one token, layer by layer.

A layer is each node's dense work for one token, its attention to the KV that it owns, its states to all others and the
merge of all states. Each node waits for the slowest state, so that layers soon take equal times: three are simulated.

On hardware of packets (`port_bytes_s`) states take the way of `mcf rtl sim --decode` instead (`mcf.sim.states`): all KV
heads but the last hide behind attention, which works on whole tiles where the profile says so (`tile_tokens`).
"""

import math
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from mcf.cluster import SWITCH, Cluster
from mcf.errors import UserError
from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import ATTEND, DECODE, MERGE, PRODUCE, RECV, SEND
from mcf.sim.cost import STATE_WIDTH_BYTES, head_seconds
from mcf.sim.network import Network, used_cluster
from mcf.sim.profile import Profile
from mcf.sim.states import states_s

LAYERS = 3


@dataclass(frozen=True, kw_only=True)
class TokenParts:
    """Seconds of one generated token: dense products and attention of the node with the most of each, states on their
    way and merged, the output head. Nothing else: norms and the choice of the token are in none of them.
    """

    products_s: float
    attention_s: float
    network_s: float
    head_s: float

    @property
    def token_s(self) -> float:
        """One part after the other."""
        return self.products_s + self.attention_s + self.network_s + self.head_s


def token_parts(
    schedule: Schedule, profile: Profile, *, shape: ModelShape, cluster: Cluster | None = None, tokens: int = 0
) -> TokenParts:
    """What a token of `decode_s` is made of. Where nodes differ, the parts overlap, and the network takes the rest."""
    _check(schedule)
    used, layers = used_cluster(schedule, cluster), schedule.meta.num_layers
    seconds, steps = _seconds(schedule, profile, shape, tokens), schedule.steps
    products, attention = (layers * _most(schedule, seconds * (steps["kind"] == kind)) for kind in (PRODUCE, ATTEND))
    head = head_seconds(shape, profile)
    if profile.port_bytes_s is not None:
        heads, size = schedule.meta.group_heads, schedule.meta.head_dim
        network = layers * states_s(used.topology, profile, num_heads=heads, head_dim=size)
    else:
        network = max(_template_s(schedule, profile, shape, used, tokens) - products - attention, 0.0)
    return TokenParts(products_s=products, attention_s=attention, network_s=network, head_s=head)


def _most(sched: Schedule, seconds: Array) -> float:
    return float(np.bincount(sched.steps["node"], seconds, sched.meta.num_nodes).max())


def _check(schedule: Schedule) -> None:
    if not (schedule.steps["stage"] == DECODE).any():
        raise UserError("got a schedule without a decode template: expected one to time decode")


def decode_s(
    schedule: Schedule, profile: Profile, *, shape: ModelShape, cluster: Cluster | None = None, tokens: int = 0
) -> float:
    """Seconds per generated token, the output head among them, once `tokens` have been generated.

    Generated tokens count as spread evenly over the nodes. Raises UserError for a schedule without a decode template.
    """
    _check(schedule)
    if profile.port_bytes_s is not None:
        return token_parts(schedule, profile, shape=shape, cluster=cluster, tokens=tokens).token_s
    return _template_s(schedule, profile, shape, used_cluster(schedule, cluster), tokens) + head_seconds(shape, profile)


def _template_s(sched: Schedule, profile: Profile, shape: ModelShape, cluster: Cluster, tokens: int) -> float:
    template = _Template(sched, profile, shape, Network(cluster, profile), tokens)
    ends = [template.layer() for _ in range(min(LAYERS, sched.meta.num_layers))]
    steady = ends[-1] - ends[-2] if len(ends) > 1 else 0.0
    return ends[-1] + steady * (sched.meta.num_layers - len(ends))


class _Template:
    def __init__(self, sched: Schedule, profile: Profile, shape: ModelShape, network: Network, tokens: int) -> None:
        self.sched, self.network = sched, network
        self.ready = [0.0] * sched.meta.num_nodes
        self.rows = [
            [row for row in sched.node_rows(n) if sched.steps["stage"][row] == DECODE]
            for n in range(sched.meta.num_nodes)
        ]
        self.seconds = _seconds(sched, profile, shape, tokens)
        self.kind: list[int] = sched.steps["kind"].tolist()
        self.size: list[int] = sched.row_bytes.tolist()
        self.recv_of = {
            (int(sched.steps["ref"][row]), n): row
            for n, rows in enumerate(self.rows)
            for row in rows
            if self.kind[row] == RECV
        }
        self.after = {row: list(sched.after_of(row)) for rows in self.rows for row in rows}

    def layer(self) -> float:
        """Simulate one layer; returns when its last node has merged."""
        self.heap: list[tuple[float, int, int]] = []  # time, send, node that has the payload
        done: dict[int, float] = {}
        self.waiting: dict[int, list[int]] = {}
        for node, rows in enumerate(self.rows):
            self._compute(node, rows, done)
        self._move(done)
        for node, rows in enumerate(self.rows):
            for row in rows:
                if self.kind[row] == MERGE:
                    start = max([self.ready[node], *(done[other] for other in self.after[row])])
                    self.ready[node] = done[row] = start + self.seconds[row]
        return max(self.ready)

    def _compute(self, node: int, rows: list[int], done: dict[int, float]) -> None:
        """Dense work and attention in list order; sends of states leave as these are made, or forward what comes."""
        for row in rows:
            if self.kind[row] in (PRODUCE, ATTEND):
                self.ready[node] += self.seconds[row]
                done[row] = self.ready[node]
            elif self.kind[row] == SEND:
                first = self.after[row][0]
                if first in done:
                    heappush(self.heap, (done[first], row, node))
                else:
                    self.waiting.setdefault(first, []).append(row)

    def _move(self, done: dict[int, float]) -> None:
        while self.heap:
            now, send, node = heappop(self.heap)
            step = self.sched.step(send)
            route = self.sched.routes[step.route] if step.route >= 0 else ((step.node, step.dst),)
            self._cross(now, send, [b for a, b in route if a == node], node, done, is_last=step.dst)

    def _cross(
        self, now: float, send: int, ends: list[int], node: int, done: dict[int, float], *, is_last: int
    ) -> None:
        size, start, end = self.size[send], now, now
        if self.network.has_ports and ends:
            start, end = self.network.line(node, SWITCH).urgent(now, size)
        for b in ends:
            if self.network.has_ports:
                line, weight, latency = self.network.into(node, b, size)
            else:
                line = self.network.line(node, b)
                weight, latency = size, line.latency
            arrival = max(end, line.urgent(start, weight)[1]) + latency
            heappush(self.heap, (arrival, send, b))
            if is_last in (-1, b):
                recv = self.recv_of[send, b]
                done[recv] = arrival
                for forward in self.waiting.pop(recv, ()):
                    heappush(self.heap, (arrival, forward, b))


def _seconds(sched: Schedule, profile: Profile, shape: ModelShape, tokens: int) -> Array:
    """[R] seconds per layer of each decode compute row; 0 elsewhere."""
    s, meta = sched.steps, sched.meta
    at, num = s["node"], meta.num_nodes
    flops, moved, beside = np.zeros(len(s)), np.zeros(len(s)), np.zeros(len(s))
    decode = s["stage"] == DECODE
    produce = decode & (s["kind"] == PRODUCE)
    flops[produce] = 2.0 * shape.num_layer_weights
    moved[produce] = shape.num_layer_weights * profile.weight_bytes
    for row in np.flatnonzero(decode & (s["kind"] == ATTEND)).tolist():
        r = sched.step(row)
        own = tokens / meta.num_nodes if r.c_hi > meta.num_chunks else 0.0
        keys = _in_tiles(sched.tokens_in(r.c_lo, r.c_hi, r.m_lo, r.m_hi) + own, profile) * (r.h_hi - r.h_lo)
        beside[row] = (r.h_hi - r.h_lo) * ((profile.tile_s or 0.0) + meta.group_heads * (profile.record_s or 0.0))
        flops[row] = 4.0 * meta.head_dim * meta.group_heads * keys
        moved[row] = float(meta.kv_row_bytes(1) * keys)
    merges = np.flatnonzero(decode & (s["kind"] == MERGE))
    inputs = (s["after_hi"] - s["after_lo"])[merges].astype(np.int64)
    flops[merges] = 4.0 * meta.head_dim * meta.num_q_heads * inputs
    moved[merges] = (inputs + 1) * meta.num_q_heads * (meta.head_dim + 2) * STATE_WIDTH_BYTES
    works = decode & np.isin(s["kind"], (PRODUCE, ATTEND, MERGE))
    speed = np.where(s["kind"] == ATTEND, profile.attention_by_node(num)[at], profile.by_node("flops_s", num)[at])
    memory, overhead = (profile.by_node(name, num)[at] for name in ("memory_bytes_s", "step_overhead_s"))
    out: Array = np.maximum(flops / speed, moved / memory) + works * overhead + beside
    return out


def _in_tiles(tokens: float, profile: Profile) -> float:
    """Tokens that attention works on: whole tiles."""
    size = profile.tile_tokens
    return tokens if size is None else math.ceil(tokens / size) * size
