"""What takes how long (eq. 6-8, 23-25), with the corrections of the design notes. Chunks count c = 1..C."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from mcf.errors import UserError
from mcf.mars.cost import Bytes
from mcf.model import ModelShape


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How fast nodes and links are: all nodes alike, all links alike.

    `P` FLOP/s of a node, a multiply-add is two; `P_attn` those of attention (None: the same); `BW` bytes/s of one
    directed link (on a switch: of a port, each way); `tau` seconds per link; `BW_mem` bytes/s of a node's memory; `w`
    bytes per weight; `overhead` seconds that every step of computing costs on top. Raises UserError for numbers that
    cannot be.
    """

    P: float
    BW: float
    tau: float = 0.0
    BW_mem: float = math.inf
    w: float = 2.0
    overhead: float = 0.0
    P_attn: float | None = None

    @property
    def attention(self) -> float:
        """FLOP/s of attention."""
        return self.P if self.P_attn is None else self.P_attn

    def __post_init__(self) -> None:
        """Refuse rates that are not above zero, and times below zero."""
        for name in (f.name for f in fields(self)):
            value, may_be_zero = getattr(self, name), name in ("tau", "overhead")
            if value is None and name == "P_attn":
                continue
            if not (value > 0 or (may_be_zero and value == 0)) or (value == math.inf and name != "BW_mem"):
                least = "at least 0" if may_be_zero else "more than 0"
                raise UserError(f"got {name} = {value!r}: expected a number of {least}")


def T_attn(shape: ModelShape, *, n: float, h: float, B: float, rates: Rates, m_l: Bytes | None = None) -> float:
    """Seconds of attention of one chunk, all layers (eq. 6, corrected): n queries of a node see h + B/2 tokens each.

    The paper takes the whole context at the chunk's end for each query; the causal half of the chunk is left out here.
    The KV that is read, h + B tokens of `m_l` bytes, may take longer.
    """
    flops = 4.0 * shape.num_q_heads * shape.head_dim * n * (h + B / 2)
    moved = float((h + B) * (shape.kv_token_layer_bytes if m_l is None else m_l))
    return shape.num_layers * max(flops / rates.attention, moved / rates.BW_mem)


def T_linear(shape: ModelShape, *, n: float, rates: Rates) -> float:
    """Seconds of dense work of n tokens on one node, all layers: arithmetic, or reading the weights once."""
    flops, moved = 2.0 * shape.num_layer_weights * n, shape.num_layer_weights * rates.w
    return shape.num_layers * max(flops / rates.P, moved / rates.BW_mem)


def T_comp(shape: ModelShape, *, n: float, h: float, B: float, rates: Rates, m_l: Bytes | None = None) -> float:
    """Seconds of computing one chunk (the T_comp of eq. 24 and 26): attention and dense work."""
    return T_attn(shape, n=n, h=h, B=B, rates=rates, m_l=m_l) + T_linear(shape, n=n, rates=rates)


def T_head(shape: ModelShape, rates: Rates) -> float:
    """Seconds of the output head for one token, which eq. 23 leaves out."""
    weights = float(shape.vocab_size * shape.hidden_size)
    return max(2 * weights / rates.P, weights * rates.w / rates.BW_mem)


def T_prop(*, load: float, depth: int, rates: Rates, deg: int = 1) -> float:
    """Seconds to spread a chunk's KV (eq. 7, corrected): the busiest cut's bytes over its `deg` links, then the depth.

    A pipelined multicast takes one block's time and the latency of its depth; hops multiply bytes, never time.
    """
    return load / (deg * rates.BW) + depth * rates.tau


def n_star(shape: ModelShape, *, rates: Rates, deg: int = 1, m_l: Bytes | None = None) -> float:
    """Tokens per node and chunk from which fetched history hides behind attention (eq. 8 as a threshold).

    `m_l P / (4 H_q d deg BW)`: it depends neither on the chunk's number nor on a safety factor. Reported, not obeyed:
    the chunk size is chosen by predicted time (`mcf.mars.best_chunk`).
    """
    m = float(shape.kv_token_layer_bytes if m_l is None else m_l)
    return m * rates.attention / (4.0 * shape.num_q_heads * shape.head_dim * deg * rates.BW)


def T_comm(*, load: float, depth: int, rates: Rates, deg: int = 1) -> float:
    """Seconds of a chunk's transfers (eq. 25, corrected): tau_link where the paper multiplies depth by a distance.

    `load` are the bytes that enter the worst node (C_rep + C_access per link, not in all), `deg` the links into it.
    """
    return T_prop(load=load, depth=depth, rates=rates, deg=deg)


def T_chunk(*, T_comp: float, T_comm: float, T_sync: float = 0.0, exposed: float = 0.0) -> float:
    """Seconds of one chunk (eq. 24): what overlaps, synchronisation, and what a layer cannot hide.

    `exposed` are transfers of new KV, queries and states that a layer needs before it can end.
    """
    return max(T_comp, T_comm) + T_sync + exposed


def T_TTFT(*, chunks: Iterable[float], head: float = 0.0) -> float:
    """Seconds to the first token (eq. 23): all chunks, and the output head for one token."""
    return math.fsum(chunks) + head
