"""What a closed form says of a policy, and what several of them need."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from mcf.mars.job import Array, Job

PURPOSES = ("new_kv", "fetched_kv", "query", "state")


@dataclass(frozen=True, kw_only=True, eq=False)
class Form:
    """A policy's prefill in numbers, all layers.

    `traffic` purpose -> bytes, each hop counted; `peak_bytes` [N] most KV bytes in use, the decode reserve included;
    `into` and `out_of` [N] bytes that enter and leave a node, a multicast leaving once; what others relay is not in.
    `fetched` [C] bytes of history that enter a node in each chunk; `groups` [C] the group size, where there is one.
    """

    policy: str
    job: Job
    traffic: Mapping[str, int]
    peak_bytes: Array
    into: Array
    out_of: Array
    fetched: Array = field(default_factory=lambda: np.zeros(1))
    groups: Array = field(default_factory=lambda: np.ones(1, dtype=np.int64))

    @property
    def traffic_bytes(self) -> int:
        """Bytes in all, each hop counted."""
        return sum(self.traffic.values())


def traffic_of(new: int = 0, fetched: int = 0, query: int = 0, state: int = 0) -> dict[str, int]:
    """Bytes by purpose."""
    return dict(zip(PURPOSES, (int(new), int(fetched), int(query), int(state)), strict=True))


def own_bytes(j: Job) -> Array:
    """[C, N] bytes of a node's own pages once a chunk's are made, and of the decode reserve."""
    pages = j.pages(j.T[1:]) + j.reserve_pages(j.T[-1])
    out: Array = pages * j.page_bytes * j.L
    return out


def needers_of(j: Job) -> Array:
    """[C, N] nodes that need other nodes' KV: those with queries; where nodes relay, all."""
    out: Array = (j.t > 0) | j.has_relays
    return out


def kv_bytes(j: Job) -> int:
    """KV bytes of one token, all layers."""
    return j.shape.kv_token_layer_bytes * j.L


def worst_of(x: Array) -> Array:
    """[C] the worst node's value in each chunk, of x [C, N]."""
    out: Array = x.max(1)
    return out


def _late_chunks(j: Job) -> Array:
    """Chunks in which a peak may be: all, or the last ones where there are too many to look at."""
    most = max(3, 2**21 // (j.N * j.N))
    return np.arange(max(0, j.C - most), j.C)


def peaks_of(j: Job, slots: Callable[[Job, int], Array], kept: Array | None = None) -> Array:
    """[N] most bytes in use: own pages, what is kept [C, N], and slots, which `slots(job, chunk)` counts in pages."""
    own = own_bytes(j) + (0 if kept is None else kept)
    return np.asarray(np.max([own[c] + slots(j, int(c)) * j.page_bytes for c in _late_chunks(j)], axis=0))


def multicast(j: Job, sent: Array, needers: Array) -> tuple[int, Array, Array]:
    """(bytes over links, [N] into nodes, [N] out of nodes) of `sent` [C, N] bytes from each maker to all needers."""
    others = needers.sum(1, keepdims=True) - needers
    into = (needers * (sent.sum(1, keepdims=True) - sent)).sum(0)
    return int((sent * others).sum()), into, (sent * (others > 0)).sum(0)
