"""Lower bounds: what no executor of a schedule can beat on a profile, each for a reason of its own.

Compute, weight streaming and latency follow from the pieces alone: they hold for every policy that cuts the prompt in
this way. The inbound cut and the bisection are the bytes of this schedule over what the links at a cut carry.
"""

from dataclasses import dataclass

import numpy as np

from mcf.cluster import SWITCH, Cluster
from mcf.cluster.facts import crossing
from mcf.mars import Limits
from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import DECODE, SEND, STATE
from mcf.sim.cost import chunk_pairs, head_seconds
from mcf.sim.network import Link, speed, used_cluster
from mcf.sim.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Bounds(Limits):
    """Seconds below which the time to the first token cannot be; `kv_bytes` bytes of KV that some node must hold."""

    kv_bytes: int


def bounds(
    schedule: Schedule, profile: Profile, *, shape: ModelShape, cluster: Cluster | None = None, merges: bool = False
) -> Bounds:
    """All lower bounds of a schedule's prefill on a profile; the output head for one token stands in each time.

    `cluster` and `merges` as for `simulate`. Links that change only get slower: the bounds stay below. Where nodes or
    links of the profile differ, each number is that of the best one: true, though not tight.
    """
    profile = profile.best()
    head, where = head_seconds(shape, profile), used_cluster(schedule, cluster)
    cut = Cuts(schedule, profile, where, merges=merges)
    return Bounds(
        compute_s=head + compute_s(schedule, profile, shape),
        weights_s=head + weights_s(schedule, profile, shape),
        inbound_s=head + cut.inbound_s(),
        bisection_s=head + cut.bisection_s(),
        latency_s=head + latency_s(schedule, profile, where),
        kv_bytes=memory_bytes(schedule),
    )


def compute_s(sched: Schedule, profile: Profile, shape: ModelShape) -> float:
    """Arithmetic of the whole prompt, spread evenly, or the dense work of the busiest node if that is more."""
    meta, tokens = sched.meta, sched.meta.prompt_tokens
    dense = 2.0 * shape.num_layer_weights * meta.num_layers
    pairs = tokens * (tokens + 1) // 2
    attention = 4.0 * meta.head_dim * meta.num_q_heads * meta.num_layers * pairs
    dense_s = dense / profile.flops_s
    even = (dense_s * tokens + attention / (profile.attention_flops_s or profile.flops_s)) / meta.num_nodes
    return max(even, dense_s * float(sched.tokens.sum(0).max()))


def weights_s(sched: Schedule, profile: Profile, shape: ModelShape) -> float:
    """A node reads all weights once for each chunk in which it has tokens."""
    loads = int((sched.tokens > 0).sum(0).max())
    moved = loads * sched.meta.num_layers * shape.num_layer_weights * profile.weight_bytes
    return moved / profile.memory_bytes_s


def inbound_s(sched: Schedule, profile: Profile, cluster: Cluster, *, merges: bool = False) -> float:
    """Bytes that enter a node over the rates of its links, for the worst node."""
    return Cuts(sched, profile, cluster, merges=merges).inbound_s()


def bisection_s(sched: Schedule, profile: Profile, cluster: Cluster, *, merges: bool = False) -> float:
    """Bytes that enter one half of the nodes from the other over the rates of the links between them."""
    return Cuts(sched, profile, cluster, merges=merges).bisection_s()


class Cuts:
    """Bytes that cross a cut in prefill, over what the links of the cluster carry there."""

    def __init__(self, sched: Schedule, profile: Profile, cluster: Cluster, *, merges: bool = False) -> None:
        self.num_nodes, self.topology = sched.meta.num_nodes, cluster.topology
        self.cluster, self.profile = cluster, profile
        self.src, self.dst, self.size = _crossings(sched, merges=merges)

    def inbound_s(self) -> float:
        """Bytes that enter a node over the rates of its links, for the worst node."""
        into = np.bincount(self.dst, weights=self.size, minlength=self.num_nodes)
        rates = np.zeros(self.num_nodes)
        for a, b in self._links_into(range(self.num_nodes)):
            rates[b] += self._rate((a, b))
        return float(np.divide(into, rates, out=np.zeros(self.num_nodes), where=rates > 0).max())

    def bisection_s(self) -> float:
        """Bytes that enter one half of the nodes from the other over the rates of the links between them."""
        half = self.num_nodes // 2
        return max(self._across(range(half, self.num_nodes)), self._across(range(half))) if half else 0.0

    def _across(self, part: range) -> float:
        inside = (self.dst >= part.start) & (self.dst < part.stop)
        outside = (self.src < part.start) | (self.src >= part.stop)
        if self.topology.is_switch:
            links = self._links_into(part)
        else:
            links = crossing(self.topology, part)
        return float(self.size[inside & outside].sum()) / sum(map(self._rate, links))

    def _rate(self, link: Link) -> float:
        return speed(self.cluster, self.profile, link)[0]

    def _links_into(self, part: range) -> list[Link]:
        if self.topology.is_switch:
            return [(SWITCH, b) for b in part]
        return [(a, b) for a in range(self.num_nodes) for b in self.topology.neighbours(a) if b in part]


def latency_s(sched: Schedule, profile: Profile, cluster: Cluster) -> float:
    """Where two nodes see each other's new tokens in a chunk, each layer but one waits for a way between them.

    And one such way is left at the end. A node's dense work stays in order, so that chunks add up.
    """
    num_nodes = sched.meta.num_nodes
    far = [cluster.topology.distances(root) for root in range(num_nodes)]
    mutual = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for chunk in range(sched.meta.num_chunks):
        sees = chunk_pairs(sched, chunk) > 0
        mutual += np.triu(sees & sees.T, 1)
    pairs = np.argwhere(mutual)
    waits = mutual * (sched.meta.num_layers - 1) + 1
    ways = [int(waits[a, b]) * min(far[a][b], far[b][a]) for a, b in pairs.tolist()]
    links = [spec.latency_s for spec in (cluster.link, *cluster.links.values())]
    least = min(profile.link_latency_s if latency is None else latency for latency in links)
    return max(ways, default=0) * least


def memory_bytes(sched: Schedule) -> int:
    """KV bytes that some node must hold: an even share of the prompt and of the generated tokens that are reserved."""
    meta = sched.meta
    tokens = meta.prompt_tokens + meta.max_new_tokens
    return -(-tokens * meta.num_layers * meta.kv_row_bytes() // meta.num_nodes)


def _crossings(sched: Schedule, *, merges: bool = False) -> tuple[Array, Array, Array]:
    """(from, to, bytes over all layers) of each payload's crossing of each link, in prefill.

    With `merges`, states to the same queries count once for each link: no fewer can cross it.
    """
    s = sched.steps
    links: list[tuple[int, int]] = []
    size: list[int] = []
    merged, has_ports = set[tuple[int, ...]](), sched.meta.topology == "switch"
    for row in np.flatnonzero((s["kind"] == SEND) & (s["stage"] != DECODE)).tolist():
        step = sched.step(row)
        route = sched.routes[step.route] if step.route >= 0 else ((step.node, step.dst),)
        if merges and step.payload == STATE:
            ends = [edge[1:] if has_ports else edge for edge in route]
            words = [(step.q, step.chunk, step.h_lo, step.h_hi, *end) for end in ends]
            route = tuple(edge for edge, word in zip(route, words, strict=True) if word not in merged)
            merged.update(words)
        links += route
        size += [int(sched.row_bytes[row])] * len(route)
    both = np.array(links, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1], np.array(size, dtype=np.float64) * sched.meta.num_layers
