"""Tokens per second of a cluster of nodes by arithmetic: cycles of products, attention, network and processor.

No cycle here was simulated with a whole model: what a tile costs is what the modules were seen to take (tests), or what
a run measured (`Measured`); the clock and the memory's rate are assumed, and the parts do not overlap. Two layouts of
the weights: every node streams all of them, or each node has an equal share of all rows, whose results they exchange.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mcf.errors import UserError
from mcf.model import ModelShape
from mcf.rtl.golden.attention import ROWS
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, SCALE_BEATS, TILE_BEATS
from mcf.rtl.processor import Processor, layer_work, token_work

CLOCK_HZ = 200e6
MEMORY_BYTES_S = 19.2e9
PUBLISHED_TOKENS_S = 17.3  # the paper's Table 2: Qwen2.5-1.5B on four KR260
WIDE_BYTES = NUM_PORTS * BEAT_BYTES
GROUP = 128
BEATS_PER_CYCLE = 0.969  # of a product from the modelled memory: `mcf rtl sim --decode` measures it
TILE_STALL = 15  # cycles of a tile and head in which the array does not multiply: 8 beats of scales, and turns
TILE_LATENCY = 320  # cycles from a tile's first key to its accumulators, which only a KV head's last tile shows
RECORD_CYCLES = 100  # a head's state leaves in 150, of which some hide behind other heads
HOP_CYCLES, STATE_BEATS, MERGE_CYCLES = 9, 18, 10
POST_CYCLES = 140  # until a record's descriptor is in the ring, over AXI4-Lite, and its packet has been fetched
COMMANDS_PER_LAYER = 10  # loads, products and attention; each an event for the next

ALL_WEIGHTS, SPLIT_WEIGHTS = "all", "split"
LAYOUTS: Mapping[str, str] = {
    ALL_WEIGHTS: "every node streams all weights",
    SPLIT_WEIGHTS: "weights split over the nodes",
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model of INT4 weights and KV on `num_nodes` nodes of a mesh, a context of so many tokens, a layout."""

    shape: ModelShape
    num_nodes: int
    context: int
    layout: str
    clock_hz: float = CLOCK_HZ
    memory_bytes_s: float = MEMORY_BYTES_S
    processor: Processor = field(default_factory=Processor)

    def __post_init__(self) -> None:
        """Name a layout that is not known."""
        if self.layout not in LAYOUTS:
            raise UserError(f"got layout {self.layout!r}: expected one of {', '.join(LAYOUTS)}")

    @property
    def share(self) -> int:
        """By how much the rows of a matrix are split."""
        return self.num_nodes if self.layout == SPLIT_WEIGHTS else 1


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Of a run (`mcf.rtl.decode_run`): wide beats per cycle of a product; cycles of one layer's attention and merge."""

    beats_per_cycle: float
    attention_cycles: float
    merge_cycles: float


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Seconds of one token by part, on the node with the most to do, and the least that memory allows."""

    case: Case
    products_s: float
    attention_s: float
    network_s: float
    processor_s: float
    weight_bytes: int
    kv_bytes: int

    @property
    def token_s(self) -> float:
        """One part after the other."""
        return self.products_s + self.attention_s + self.network_s + self.processor_s

    @property
    def tokens_s(self) -> float:
        """Tokens per second."""
        return 1 / self.token_s

    @property
    def bound_tokens_s(self) -> float:
        """What memory allows where nothing else takes time: all bytes of weights and KV once per token."""
        return self.case.memory_bytes_s / (self.weight_bytes + self.kv_bytes)

    @property
    def port_bound_tokens_s(self) -> float:
        """The same through the node's four ports, one wide beat a cycle."""
        return self.case.clock_hz * WIDE_BYTES / (self.weight_bytes + self.kv_bytes)

    def numbers(self) -> dict[str, float | str | int]:
        """The documented object."""
        return {
            "layout": self.case.layout,
            "nodes": self.case.num_nodes,
            "context": self.case.context,
            "assumed_clock_hz": self.case.clock_hz,
            "assumed_memory_bytes_s": self.case.memory_bytes_s,
            "products_s": self.products_s,
            "attention_s": self.attention_s,
            "network_s": self.network_s,
            "processor_s": self.processor_s,
            "tokens_s": self.tokens_s,
            "bound_tokens_s": self.bound_tokens_s,
            "port_bound_tokens_s": self.port_bound_tokens_s,
            "published_tokens_s": PUBLISHED_TOKENS_S,
        }


def assumptions(case: Case) -> str:
    """What a rate assumes, in words."""
    return (
        f"tokens/s are arithmetic over cycles: assumed clock {case.clock_hz / 1e6:g} MHz, assumed memory "
        f"{case.memory_bytes_s / 1e9:g} GB/s, nothing overlaps; {case.processor.says()}."
    )


def matrices(shape: ModelShape) -> Iterator[tuple[int, int]]:
    """Rows and columns of one layer's matrices."""
    queries, kv = shape.num_q_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    yield queries + 2 * kv, shape.hidden_size
    yield shape.hidden_size, queries
    yield 2 * shape.intermediate_size, shape.hidden_size
    yield shape.hidden_size, shape.intermediate_size


def product_beats(rows: int, columns: int, share: int = 1, *, group: int = GROUP) -> int:
    """Wide beats of a matrix on the node with the most row tiles: scales and padding among them."""
    row_tiles, groups = -(-rows // ROWS), -(-columns // group)
    return -(-row_tiles // share) * groups * (group + SCALE_BEATS)


def attention_cycles(shape: ModelShape, tokens: int) -> int:
    """Cycles of one layer's attention to a shard: each query head takes a tile's keys and values for itself."""
    tiles, group = -(-tokens // ROWS), shape.num_group_heads
    per_tile = max(group * (shape.head_dim + ROWS + TILE_STALL), _tile_beats(shape))
    return shape.num_kv_heads * (tiles * per_tile + TILE_LATENCY + group * RECORD_CYCLES)


def _tile_beats(shape: ModelShape) -> int:
    return shape.head_dim + SCALE_BEATS + TILE_BEATS


def rate(case: Case, measured: Measured | None = None) -> Rate:
    """Add up one token; what a run has measured stands for the arithmetic."""
    shape, share = case.shape, case.share
    beats = sum(product_beats(*matrix, share) for matrix in matrices(shape)) * shape.num_layers
    beats += product_beats(shape.vocab_size, shape.hidden_size, share)
    tokens = -(-case.context // case.num_nodes)
    kv_beats = shape.num_layers * shape.num_kv_heads * -(-tokens // ROWS) * _tile_beats(shape)
    found = measured or Measured(
        beats_per_cycle=BEATS_PER_CYCLE,
        attention_cycles=attention_cycles(shape, tokens),
        merge_cycles=_merge_cycles(case),
    )
    work = [*token_work(shape)] + [*layer_work(shape, num_commands=COMMANDS_PER_LAYER)] * shape.num_layers
    return Rate(
        case=case,
        products_s=beats / found.beats_per_cycle / case.clock_hz,
        attention_s=shape.num_layers * found.attention_cycles / case.clock_hz,
        network_s=shape.num_layers * (found.merge_cycles + _exchange_cycles(case)) / case.clock_hz,
        processor_s=sum(map(case.processor.seconds, work)),
        weight_bytes=beats * WIDE_BYTES,
        kv_bytes=kv_beats * WIDE_BYTES,
    )


def _merge_cycles(case: Case) -> float:
    """The last head's state up a tree and back to all."""
    if case.num_nodes == 1:
        return 0
    depth = _depth(case)
    return POST_CYCLES + depth * (HOP_CYCLES + STATE_BEATS + MERGE_CYCLES) + depth * HOP_CYCLES + STATE_BEATS


def _exchange_cycles(case: Case) -> float:
    """Where weights are split: the rows of 32 bits of a layer's matrices, all but one's own come in through a link."""
    if case.share == 1:
        return 0
    beats = [-(-rows * 4 // BEAT_BYTES) for rows, _ in matrices(case.shape)]
    share = (case.num_nodes - 1) / case.num_nodes * 65 / 64  # a header for 64 beats
    return sum(n * share + _depth(case) * HOP_CYCLES for n in beats)


def _depth(case: Case) -> int:
    """Hops of a square mesh, corner to corner."""
    return max(1, math.isqrt(case.num_nodes) * 2 - 2)
