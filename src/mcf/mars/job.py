"""A request in numbers, and the token arithmetic that closed forms are made of: no schedule is built for it.

Here chunks and nodes count from 0, as everywhere but in the paper's equations.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.cluster import Topology
from mcf.cluster.facts import in_degrees
from mcf.errors import UserError
from mcf.mars.chunk import PAGE_TOKENS
from mcf.mars.placement import spread
from mcf.mars.replicas import Alpha
from mcf.mars.times import Rates
from mcf.model import ModelShape

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is asked: S prompt tokens in chunks of B over the nodes of a topology.

    `S_node` is each node's KV budget in bytes (None: no limit), `alpha` MARS's reuse bound (None: the paper's default).
    `drain_chunks` are the last chunks over which `mars` and `mars-paper` retire copies (`mcf.mars.still_held`).
    `is_head_tail` says how a chunk is cut: head and tail pieces for each node, or one span. `makers` of the nodes
    compute (None: all). `rates` are the speeds that policy `mars` decides by. Raises UserError for counts that cannot
    be.
    """

    shape: ModelShape
    topology: Topology
    S: int
    B: int
    stream_slots: int = 2
    max_new_tokens: int = 0
    S_node: int | None = None
    alpha: Alpha | None = None
    drain_chunks: int = 0
    is_head_tail: bool = True
    makers: int | None = None
    rates: Rates | None = None

    def __post_init__(self) -> None:
        """Refuse counts below one."""
        counts = (("S", 1), ("B", 1), ("stream_slots", 1), ("max_new_tokens", 0), ("S_node", 1), ("drain_chunks", 0))
        for name, least in counts:
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"got {name} = {value}: expected at least {least}")

    def replace(self, **changes: Any) -> "Job":
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @property
    def N(self) -> int:
        """Nodes."""
        return self.topology.num_nodes

    @property
    def C(self) -> int:
        """Chunks."""
        return -(-self.S // self.B)

    @property
    def L(self) -> int:
        """Layers."""
        return self.shape.num_layers

    @property
    def ahead(self) -> int:
        """Layers that history is fetched early."""
        return min(1, self.stream_slots - 1)

    @cached_property
    def has_relays(self) -> bool:
        """Say whether some nodes reach others only by way of third ones."""
        return self.topology.has_relays

    @cached_property
    def cycle(self) -> Array:
        """[N] nodes in the order of a round trip."""
        return np.array(self.topology.cycle)

    @cached_property
    def walk(self) -> Array:
        """[N] node of each rank: an aligned group of ranks in a row is a tile of the topology."""
        return np.array(self.topology.walk)

    @cached_property
    def chunk_sizes(self) -> Array:
        """[C] tokens of each chunk."""
        out = np.full(self.C, self.B, dtype=np.int64)
        out[-1] = self.S - (self.C - 1) * self.B
        return out

    @cached_property
    def t(self) -> Array:
        """[C, N] tokens of each maker in each chunk: even, the remainders going round from chunk to chunk."""
        num = self.N if self.makers is None else self.makers
        base, rest = np.divmod(self.chunk_sizes, num)
        first = (rest.cumsum() - rest) % num
        turn = (np.arange(num)[None, :] - first[:, None]) % num
        out = np.zeros((self.C, self.N), dtype=np.int64)
        out[:, :num] = base[:, None] + (turn < rest[:, None])
        return out

    @cached_property
    def T(self) -> Array:
        """[C+1, N] tokens of each maker before each chunk."""
        out = np.zeros((self.C + 1, self.N), dtype=np.int64)
        out[1:] = self.t.cumsum(0)
        return out

    def ends(self, c: int) -> tuple[Array, Array]:
        """([N], [N]) first and last token of each node in a chunk, counted from the chunk's start; (B, -1) if none."""
        t = self.t[c]
        tail = t // 2 if self.is_head_tail else t * 0
        head = t - tail
        first = head.cumsum() - head
        last = np.where(tail > 0, t.sum() - (tail.cumsum() - tail) - 1, first + head - 1)
        return np.where(t > 0, first, self.B), np.where(t > 0, last, -1)

    def sees(self, c: int) -> Array:
        """[N, N] whether a node's queries of chunk c may see any of a maker's new tokens."""
        first, last = self.ends(c)
        out: Array = first[None, :] <= last[:, None]
        return out

    def pages(self, tokens: Array) -> Array:
        """Pages that hold so many tokens."""
        return -(-tokens // PAGE_TOKENS)

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of one layer."""
        return PAGE_TOKENS * self.shape.kv_token_layer_bytes

    @cached_property
    def generated(self) -> Array:
        """[N] of the generated tokens, those whose KV falls to each node: pages go round robin."""
        cycle = self.N * PAGE_TOKENS
        whole, rest = divmod(self.max_new_tokens, cycle)
        return whole * PAGE_TOKENS + np.clip(rest - np.arange(self.N) * PAGE_TOKENS, 0, PAGE_TOKENS)

    def reserve_pages(self, own: Array) -> Array:
        """[N] further pages of each layer that the generated tokens take, behind `own` [N] tokens."""
        return self.pages(own + self.generated) - self.pages(own)

    @cached_property
    def degree(self) -> int:
        """Links that lead into the worst node: one port on a switch."""
        return max(1, min(in_degrees(self.topology)))

    @cached_property
    def hops(self) -> Array:
        """[N, N] links from one node to another."""
        if self.topology.is_switch:
            return 1 - np.eye(self.N, dtype=np.int64)
        return np.array([self.topology.distances(a) for a in range(self.N)], dtype=np.int64)

    @cached_property
    def ranks(self) -> Array:
        """[maker, node] which copy of a maker's blocks a node gets in MARS: 0 the owner's own, 1 the first other."""
        if not self.has_relays:
            nodes = np.arange(self.N)
            return (nodes[None, :] - nodes[:, None]) % self.N
        return np.array([np.argsort(spread(owner, self.hops)) for owner in range(self.N)])

    @property
    def query_bytes(self) -> int:
        """Bytes of one token's query in one layer."""
        return self.shape.num_q_heads * self.shape.head_dim * self.shape.act_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of one token's partial state in one layer: maximum, sum and output in float32."""
        return self.shape.num_q_heads * (self.shape.head_dim + 2) * 4
