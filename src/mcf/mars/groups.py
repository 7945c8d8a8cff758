"""Groups: g nodes hold one full copy of the history among them, so r = N/g copies exist (not in the paper).

g = 1 is a full copy on every node, g = N owner-only. What a node lacks of its group's copy is *streamed* (fetched),
what the others of its group hold is *routed*: queries go there and partial states come back. Per layer and node:

    new(g)    = (B/g - B/N) m_l                    in: new KV, multicast to the N/g nodes of its class
    route(g)  = (B/N)(g - 1)(q + p)                in: queries of the group, states for the node's own
    stream(g) = max(0, h M_token/g - K_h)          in, per chunk and all layers; known ahead, so it can be prefetched
    t_att(g)  = max(4 H_q d (B/N)(h + B/2)/P, (h + B)/g m_l/BW_mem)
    T_layer   = t_lin + max(t_att, new/(deg BW) + route/(deg BW)) + [g > 1](2 depth tau + p_tail)
    T_chunk   = max(L T_layer, (stream + L (new + route))/(deg BW))

The source is section 3 of the design notes.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from mcf.errors import InfeasibleError, UserError
from mcf.mars.cost import Bytes
from mcf.mars.times import Rates, T_attn, T_head, T_linear
from mcf.model import ModelShape
from mcf.units import format_bytes

STATE_BYTES = 4  # states travel in float32: output, max and sum


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Who shares what: N nodes, S prompt tokens in chunks of B, P0 tokens cached before, on nodes of `S_node` bytes.

    `deg` links lead into the worst node; `b` are bytes per KV element (default: the shape's); `state_bytes` per element
    of a partial state's output. Raises UserError for numbers that cannot be.
    """

    shape: ModelShape
    N: int
    S: int
    B: int
    P0: int = 0
    S_node: int | None = None
    deg: int = 1
    depth: int = 1
    b: Bytes | None = None
    state_bytes: int = STATE_BYTES

    def __post_init__(self) -> None:
        """Refuse counts below one, and a negative prefix."""
        for name, least in (("N", 1), ("S", 1), ("B", 1), ("deg", 1), ("depth", 0), ("P0", 0), ("S_node", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"got {name} = {value}: expected at least {least}")

    @property
    def C(self) -> int:
        """Chunks of the prompt (eq. 2)."""
        return -(-self.S // self.B)

    @property
    def m_l(self) -> Bytes:
        """KV bytes of one token in one layer."""
        if self.b is None:
            return self.shape.kv_token_layer_bytes
        return 2 * self.shape.num_kv_heads * self.shape.head_dim * self.b

    @property
    def m_t(self) -> Bytes:
        """KV bytes of one token in all layers (eq. 1)."""
        return self.shape.num_layers * self.m_l

    @property
    def q(self) -> int:
        """Bytes of one token's query in one layer."""
        return self.shape.num_q_heads * self.shape.head_dim * self.shape.act_bytes

    @property
    def p(self) -> int:
        """Bytes of one token's partial state in one layer: output, and maximum and sum in float32."""
        return self.shape.num_q_heads * (self.shape.head_dim * self.state_bytes + 8)

    def h(self, c: int) -> int:
        """Tokens before chunk c = 1..C, the cached prefix among them (eq. 4)."""
        return self.P0 + (c - 1) * self.B

    def B_c(self, c: int) -> int:
        """Tokens of chunk c; the last may be short."""
        return min(self.B, self.S - (c - 1) * self.B)

    def K_h(self, c: int) -> float:
        """Bytes of history that a node can hold at chunk c: its budget, less its share of the new chunk."""
        if self.S_node is None:
            return math.inf
        return self.S_node - float(Fraction(self.B_c(c), self.N) * self.m_t)

    def check(self) -> None:
        """Raise InfeasibleError, with the missing bytes, unless a node holds its own share of the whole (eq. 11)."""
        share = math.ceil(Fraction(self.P0 + self.S, self.N) * self.m_t)
        if self.S_node is not None and share > self.S_node:
            raise InfeasibleError(
                f"got a KV budget of {format_bytes(self.S_node)} per node: a node's own share of {self.P0 + self.S} "
                f"tokens on {self.N} nodes is {format_bytes(share)}, {format_bytes(share - self.S_node)} more; give "
                "more, use more nodes or a shorter prompt",
                missing_bytes=share - self.S_node,
            )


def sizes(N: int) -> list[int]:
    """Group sizes g to choose from, each a divisor of the next, from 1 to N: so that classes nest.

    >>> sizes(16), sizes(12), sizes(7)
    ([1, 2, 4, 8, 16], [1, 2, 4, 12], [1, 7])
    """
    out = [1]
    while N % (2 * out[-1]) == 0:
        out.append(2 * out[-1])
    return out if out[-1] == N else [*out, N]


def new(g: float, s: Setting, B: int) -> float:
    """Bytes of new KV into a node in one layer."""
    return B * (1 / g - 1 / s.N) * float(s.m_l)


def route(g: float, s: Setting, B: int) -> float:
    """Bytes of queries and states into a node in one layer."""
    return B / s.N * (g - 1) * (s.q + s.p)


def stream(g: float, s: Setting, c: int) -> float:
    """Bytes of history, all layers, that a node lacks of its class at chunk c with its memory full of the rest."""
    return max(0.0, s.h(c) * float(s.m_t) / g - s.K_h(c))


def t_att(g: float, s: Setting, c: int, rates: Rates) -> float:
    """Seconds of attention in one layer: the same arithmetic for all g, g-fold less KV to read."""
    B = s.B_c(c)
    flops = 4.0 * s.shape.num_q_heads * s.shape.head_dim * (B / s.N) * (s.h(c) + B / 2)
    return max(flops / rates.attention, (s.h(c) + B) / g * float(s.m_l) / rates.BW_mem)


def T_layer(g: float, s: Setting, c: int, rates: Rates) -> float:
    """Seconds of one layer of chunk c."""
    B, link = s.B_c(c), s.deg * rates.BW
    dense = T_linear(s.shape, n=B / s.N, rates=rates) / s.shape.num_layers
    tail = 2 * s.depth * rates.tau + B / s.N * s.p / link if g > 1 else 0.0
    return dense + max(t_att(g, s, c, rates), (new(g, s, B) + route(g, s, B)) / link) + tail


def bytes_in(g: float, s: Setting, c: int) -> float:
    """Bytes into a node in chunk c, all layers: streamed, new and routed."""
    B = s.B_c(c)
    return stream(g, s, c) + s.shape.num_layers * (new(g, s, B) + route(g, s, B))


def T_group(g: float, s: Setting, c: int, rates: Rates) -> float:
    """Seconds of chunk c with groups of g: its layers, or all that comes in, if that takes longer."""
    return max(s.shape.num_layers * T_layer(g, s, c, rates), bytes_in(g, s, c) / (s.deg * rates.BW))


# --- crossovers (section 3.1 of the design notes) ---


def h_over_B(s: Setting, g: int | None = None) -> float:
    """History in chunks from which routing moves fewer bytes than fetching: in full (g = N), or in groups of g."""
    return (s.q + s.p) / float(s.m_l) * (s.N if g is None else g) / s.N


def h_hidden(s: Setting, g: int, rates: Rates) -> float:
    """Tokens of history from which routing in groups of g hides behind attention, whatever the chunk size."""
    return (g - 1) * (s.q + s.p) * rates.attention / (4.0 * s.shape.num_q_heads * s.shape.head_dim * s.deg * rates.BW)


# --- lower bounds of all that hold, fetch and route whole heads (section 3.5 of the design notes) ---


def compute_bound_s(s: Setting, rates: Rates) -> float:
    """Seconds that the arithmetic of the prompt takes on N nodes in balance, or reading all weights once per chunk."""
    work = [
        T_attn(s.shape, n=s.B_c(c) / s.N, h=s.h(c), B=s.B_c(c), rates=rates, m_l=0)
        + T_linear(s.shape, n=s.B_c(c) / s.N, rates=rates)
        for c in range(1, s.C + 1)
    ]
    return math.fsum(work) + T_head(s.shape, rates)


def inbound_bound_s(s: Setting, rates: Rates) -> float:
    """Seconds that the fewest bytes into a node take, over all group sizes, integers that divide N or not.

    For nodes that share every chunk's tokens evenly and keep heads together: `ulysses` and `pd` may take less.

    Bytes are convex in g between the points where streaming ends, so the least of them is at an end, at such a point,
    or where the derivative vanishes: g* = sqrt of (what shrinks with g)/(what grows with g).
    """
    total = math.fsum(min(bytes_in(g, s, c) for g in _extremes(s, c)) for c in range(1, s.C + 1))
    return total / (s.deg * rates.BW) + T_head(s.shape, rates)


def _extremes(s: Setting, c: int) -> list[float]:
    B, L = s.B_c(c), s.shape.num_layers
    K = s.K_h(c)
    grows = L * B / s.N * (s.q + s.p)
    shrinks = L * B * float(s.m_l), L * B * float(s.m_l) + s.h(c) * float(s.m_t)
    found = [1.0, float(s.N), *(math.sqrt(x / grows) for x in shrinks)]
    if 0 < K < math.inf:
        found.append(s.h(c) * float(s.m_t) / K)
    return [min(max(g, 1.0), float(s.N)) for g in found]


def bisection_bound_s(s: Setting, rates: Rates, *, links: int) -> float:
    """Seconds that the fewest bytes between two halves of the nodes take, `links` each way, over all policies.

    A half holds at most its nodes' budgets. What it lacks of the history comes in as KV, or all its queries go out and
    their answers come in. Of the two directions one carries at least the mean.
    """
    half, L, total = s.N // 2, s.shape.num_layers, 0.0
    for c in range(1, s.C + 1) if half else ():
        lacks = max(0.0, s.h(c) * float(s.m_t) - (s.N - half) * s.K_h(c))
        total += min(lacks, s.B_c(c) // s.N * half * (s.q + s.p) * L)  # the fewest tokens of any half
    return total / (links * rates.BW) + T_head(s.shape, rates)
