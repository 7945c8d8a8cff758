"""Lower bounds: what no executor of a schedule can beat on a profile, each for a reason of its own.

Compute, weight streaming and latency follow from the pieces alone: they hold for every policy that cuts the prompt in
this way. The inbound cut and the bisection are the bytes of this schedule over what the links at a cut carry.
"""

from dataclasses import asdict, dataclass

import numpy as np

from mcf.cluster import Topology
from mcf.cluster.facts import crossing, in_degrees
from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import DECODE, SEND
from mcf.sim.cost import chunk_pairs, head_seconds
from mcf.sim.profile import Profile


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Seconds below which the time to the first token cannot be; `kv_bytes` bytes of KV that some node must hold."""

    compute_s: float
    weights_s: float
    inbound_s: float
    bisection_s: float
    latency_s: float
    kv_bytes: int

    @property
    def bound_s(self) -> float:
        """The largest of the times."""
        return max(self._times().values())

    @property
    def limit(self) -> str:
        """Which bound is the largest: `compute`, `weights`, `inbound`, `bisection` or `latency`."""
        times = self._times()
        return max(times, key=times.__getitem__).removesuffix("_s")

    def _times(self) -> dict[str, float]:
        return {name: value for name, value in asdict(self).items() if name.endswith("_s")}


def bounds(schedule: Schedule, profile: Profile, *, shape: ModelShape) -> Bounds:
    """All lower bounds of a schedule's prefill on a profile; the output head for one token stands in each time.

    Where nodes or links differ, each number is that of the best one: true, though not tight.
    """
    profile = profile.best()
    head = head_seconds(shape, profile)
    return Bounds(
        compute_s=head + compute_s(schedule, profile, shape),
        weights_s=head + weights_s(schedule, profile, shape),
        inbound_s=head + inbound_s(schedule, profile),
        bisection_s=head + bisection_s(schedule, profile),
        latency_s=head + latency_s(schedule, profile),
        kv_bytes=least_kv_bytes(schedule),
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


def inbound_s(sched: Schedule, profile: Profile) -> float:
    """Bytes that enter a node over what its links carry, for the worst node."""
    _, dst, size = _crossings(sched)
    into = np.bincount(dst, weights=size, minlength=sched.meta.num_nodes)
    degrees = np.maximum(in_degrees(_topology(sched)), 1)
    return float((into / degrees).max()) / profile.link_bytes_s


def bisection_s(sched: Schedule, profile: Profile) -> float:
    """Bytes that enter one half of the nodes from the other over what the links between them carry."""
    num_nodes = sched.meta.num_nodes
    half = num_nodes // 2
    if not half:
        return 0.0
    src, dst, size = _crossings(sched)
    up, down = (float(size[((src < half) != (dst < half)) & ((dst >= half) == into)].sum()) for into in (True, False))
    topology = _topology(sched)
    if topology.is_switch:
        links_up, links_down = num_nodes - half, half
    else:
        links_up, links_down = (len(crossing(topology, part)) for part in (range(half, num_nodes), range(half)))
    return max(up / links_up, down / links_down) / profile.link_bytes_s


def latency_s(sched: Schedule, profile: Profile) -> float:
    """Where two nodes see each other's new tokens in a chunk, each layer but one waits for a way between them.

    And one such way is left at the end. A node's dense work stays in order, so that chunks add up.
    """
    num_nodes = sched.meta.num_nodes
    topology = _topology(sched)
    mutual = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    for chunk in range(sched.meta.num_chunks):
        sees = chunk_pairs(sched, chunk) > 0
        mutual += np.triu(sees & sees.T, 1)
    pairs = np.argwhere(mutual)
    waits = mutual * (sched.meta.num_layers - 1) + 1
    ways = [int(waits[a, b]) * min(topology.hops(a, b), topology.hops(b, a)) for a, b in pairs.tolist()]
    return max(ways, default=0) * profile.link_latency_s


def least_kv_bytes(sched: Schedule) -> int:
    """KV bytes of the fullest node at the end, if the prompt's KV is spread evenly: no budget below it can do."""
    meta = sched.meta
    return -(-meta.prompt_tokens // meta.num_nodes) * meta.num_layers * meta.kv_row_bytes()


def _topology(sched: Schedule) -> Topology:
    return Topology.parse(sched.meta.topology, sched.meta.num_nodes)


def _crossings(sched: Schedule) -> tuple[Array, Array, Array]:
    """(from, to, bytes over all layers) of each payload's crossing of each link, in prefill."""
    s = sched.steps
    links: list[tuple[int, int]] = []
    size: list[int] = []
    for row in np.flatnonzero((s["kind"] == SEND) & (s["stage"] != DECODE)).tolist():
        step = sched.step(row)
        route = sched.routes[step.route] if step.route >= 0 else ((step.node, step.dst),)
        links += route
        size += [int(sched.row_bytes[row])] * len(route)
    both = np.array(links, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1], np.array(size, dtype=np.float64) * sched.meta.num_layers
