"""Predicted times of each policy: closed forms over chunks, for one kind of node and of link.

A node's layer is its dense work, then the longer of attending and of what must come in for it, then the merge; a chunk
is its layers, or all that comes into a node in it, whichever is longer. The model is that of section 3 of the design
notes, with the overhead of steps and the merges that the simulator times too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

import numpy as np

from mcf.cluster import Topology
from mcf.cluster.facts import bisection, in_degrees
from mcf.mars.form import Form
from mcf.mars.groups import Setting, bisection_bound_s
from mcf.mars.job import Array, Job
from mcf.mars.limits import Limits
from mcf.mars.times import Rates, T_head

# policies that may send less between halves than queries or KV of whole heads, with even shares
_UNEVEN = ("ulysses", "pd", "pipeline")


@dataclass(frozen=True, kw_only=True)
class Prediction(Limits):
    """Seconds to the first token as predicted, and the lower bounds of this policy's schedule."""

    ttft_s: float


def degree(topology: Topology) -> int:
    """Links that lead into the worst node: one port on a switch."""
    return max(1, min(in_degrees(topology)))


class _Chunks:
    """[C] arrays: what one layer of each chunk takes on the busiest node."""

    def __init__(self, j: Job, rates: Rates, makers: int) -> None:
        self.j, self.rates, self.makers = j, rates, makers
        self.B = j.chunk_sizes.astype(float)
        self.h = self.B.cumsum() - self.B
        self.n = np.ceil(self.B / makers)
        self.ml, self.link = float(j.shape.kv_token_layer_bytes), degree(j.topology) * rates.BW
        self.heads = float(j.shape.num_q_heads * j.shape.head_dim)
        W = j.shape.num_layer_weights
        self.dense = np.maximum(2.0 * W * self.n / rates.P, W * rates.w / rates.BW_mem) + rates.overhead
        self.depth = int(j.hops.max()) if j.has_relays else 1

    def attend(self, steps: int, *, pairs: Array | None = None) -> Array:
        """Attention of a node's share, in so many steps."""
        seen = self.n * (self.h + self.B / 2) if pairs is None else pairs
        work = 4.0 * self.heads * seen / self.rates.attention
        read = (self.h + self.B) * self.ml / self.rates.BW_mem
        return np.asarray(np.maximum(work, read) + steps * self.rates.overhead)

    def merge(self, states: int) -> Array:
        """Merging the states of a node's own queries."""
        moved = (states + 1) * self.n * self.j.state_bytes
        flops = 4.0 * self.heads * self.n * states
        return np.maximum(flops / self.rates.attention, moved / self.rates.BW_mem) + self.rates.overhead

    def total(self, layer: Array, inbound: Array) -> float:
        """All chunks: their layers, or all that comes in, and the output head."""
        L = self.j.L
        chunks = np.maximum(L * layer, inbound / self.link)
        return float(chunks.sum()) + T_head(self.j.shape, self.rates)


def _kv(form: Form, k: _Chunks, steps: int) -> float:
    """Policies that bring KV to the queries: new KV inside the layer, history ahead of time where the link is free."""
    new = (k.B - np.floor(k.B / k.makers)) * k.ml * (k.makers > 1)
    old = form.fetched / k.j.L / k.link
    ways = 1 if form.policy == "full" else -(-(k.makers - 1) // k.j.stream_slots)  # a receive waits for a slot
    way = np.maximum(new / k.link + k.depth * k.rates.tau, ways * k.rates.tau)
    arrived = k.dense + way * (new > 0)
    work = k.attend(steps)
    layer = np.maximum(k.dense + work, arrived + work / k.makers * (old > 0)) + k.merge(steps)
    return k.total(layer, form.fetched + k.j.L * new)


def _ring(form: Form, k: _Chunks) -> float:
    """Round the ring: step after step, each as long as its transfer or its attend; only the first history is early."""
    N, causal = k.makers, not form.job.is_head_tail
    old, new = (x / N * k.ml / k.rates.BW for x in (k.h, k.B))
    work = k.attend(N, pairs=k.n * (k.h + k.B - k.n / 2) if causal else None)
    arrived = np.maximum(k.dense, old) + new + max(N - 2, 0) * (old + new) + (N - 1) * k.rates.tau
    layer = np.maximum(k.dense + work, (arrived + work / N) * (N > 1)) + k.merge(N)
    return k.total(layer, k.j.L * (N - 1) * (old + new) * k.link)


def _routed(form: Form, k: _Chunks) -> float:
    """Queries go out and states come back, inside the layer; of `ulysses` the new KV by heads before them."""
    N, j = k.makers, k.j
    groups = gcd(j.shape.num_kv_heads, N) if form.policy == "ulysses" else 1
    new = k.n * (groups - 1) * k.ml / groups
    asked = (N - 1) * k.n / groups
    inbound = new + asked * (j.query_bytes + j.state_bytes)
    work, ways = k.attend(N), 2 * k.depth * k.rates.tau * (N > 1)
    last = k.n * j.state_bytes / groups / k.link * (N > 1)
    layer = k.dense + np.maximum(work + last, inbound / k.link + work / N) + ways + k.merge(N)
    return k.total(layer, j.L * inbound)


def _pd(form: Form, k: _Chunks) -> float:
    """Half the nodes prefill as `full` does; each block also leaves once for its owner."""
    P = k.makers
    new, out = (k.B - np.floor(k.B / P)) * k.ml * (P > 1), k.n * k.ml * (2 if P > 1 else 1)
    steps = P + 1
    layer = k.dense + np.maximum(k.attend(steps), new / k.link + k.rates.tau * (P > 1)) + k.merge(steps)
    handed = float(out[-1]) / k.rates.BW + k.rates.tau
    return k.total(layer, k.j.L * np.maximum(new, out)) + handed


def _pipeline(form: Form, k: _Chunks) -> float:
    """Chunk after chunk through stages of L/N layers; the last chunk, the slowest, still has all stages to go."""
    j, rates, N = k.j, k.rates, k.j.N
    layers, W = -(-j.L // N), j.shape.num_layer_weights
    dense = np.maximum(2.0 * W * k.B / rates.P, W * rates.w / rates.BW_mem)
    seen = np.maximum(4.0 * k.heads * k.B * (k.h + k.B / 2) / rates.attention, (k.h + k.B) * k.ml / rates.BW_mem)
    passed = k.B * j.shape.hidden_size * j.shape.act_bytes / rates.BW * (N > 1)
    stage = np.maximum(layers * (dense + seen + 3 * rates.overhead), passed)
    tail = (N - 1) * (float(stage[-1]) + float(passed[-1]) + rates.tau)
    return float(stage.sum()) + tail + T_head(j.shape, rates)


def _steps(form: Form) -> int:
    return form.job.N + (form.policy == "full")


def _grouped(form: Form, k: _Chunks) -> float:
    """Groups of g: history ahead of time, new KV and queries inside the layer, states back at its end."""
    N, j, g = k.makers, k.j, form.groups
    new = (k.B - np.floor(k.B / N)) * k.ml * (N / g - 1) / max(N - 1, 1)
    routed = (g - 1) * k.n * (j.query_bytes + j.state_bytes)
    old = form.fetched / j.L / k.link
    ways = np.maximum(-(-(N // g - 1) // j.stream_slots), k.depth) * k.rates.tau
    arrived = np.maximum(k.dense, old) + np.maximum((new + routed) / k.link, ways)
    work = k.attend(N)
    tail = (k.n * j.state_bytes / k.link + k.depth * k.rates.tau) * (g > 1)
    layer = np.maximum(k.dense + work, arrived + work / N) + tail + k.merge(N)
    return k.total(layer, form.fetched + j.L * (new + routed))


_TIMES: dict[str, Callable[[Form, _Chunks], float]] = {
    "ring": _ring,
    "zigzag": _ring,
    "pass-q": _routed,
    "ulysses": _routed,
    "pd": _pd,
    "pipeline": _pipeline,
    "mars": _grouped,
}


def predict(form: Form, rates: Rates) -> Prediction:
    """Predict the time to the first token of a policy, with the bounds that no executor of its schedule beats."""
    j = form.job
    k = _Chunks(j, rates, j.makers or j.N)
    time = _TIMES[form.policy](form, k) if form.policy in _TIMES else _kv(form, k, _steps(form))
    head = T_head(j.shape, rates)
    least = {name: head + value for name, value in _bounds(form, k, rates).items()}
    return Prediction(ttft_s=max(time, *least.values()), **least)  # the model's nodes are alike; few tokens are not


def _bounds(form: Form, k: _Chunks, rates: Rates) -> dict[str, float]:
    """Seconds of arithmetic (in balance, or the busiest node's dense work), of weights, of bytes into a node."""
    j = form.job
    is_split = form.policy == "pipeline"  # by layers: each node has all tokens
    dense, pairs = 2.0 * j.shape.num_layer_weights * j.L, j.S * (j.S + 1) / 2
    busiest = 0.0 if is_split else dense * float(j.t.sum(0).max())
    even = (dense * j.S / rates.P + 4.0 * k.heads * j.L * pairs / rates.attention) / j.N
    loads = j.C / j.N if is_split else int((j.t > 0).sum(0).max())
    return {
        "compute_s": max(even, busiest / rates.P),
        "weights_s": loads * j.L * j.shape.num_layer_weights * rates.w / rates.BW_mem,
        "inbound_s": float(form.into.max()) / k.link,
        "bisection_s": _across(form, rates),
        "latency_s": (j.N - 1 if is_split else _waits(j)) * rates.tau,
    }


def _across(form: Form, rates: Rates) -> float:
    """Seconds that halves of the nodes must spend on each other under the budgets, whatever the policy."""
    j = form.job
    if j.N < 2 or j.S_node is None or form.policy in _UNEVEN:
        return 0.0
    s = Setting(shape=j.shape, N=j.N, S=j.S, B=j.B, S_node=j.S_node)
    return bisection_bound_s(s, rates, links=bisection(j.topology)) - T_head(j.shape, rates)


def _waits(j: Job) -> int:
    """Times that the first two nodes wait for each other: in each layer but one of a chunk where both see the other."""
    if j.N < 2 or not j.is_head_tail:
        return 0
    mutual = int((j.t[:, :2] > 1).all(1).sum())
    return mutual * (j.L - 1) + 1 if mutual else 0
