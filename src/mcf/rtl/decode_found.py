"""What a decode step on simulated nodes took. Beats and cycles are those of the simulation, its memories and links."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.decode import DecodeCase
from mcf.rtl.golden.attention import ROWS
from mcf.rtl.golden.tiles import SCALE_BEATS
from mcf.rtl.rates import Measured


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerRun:
    """Cycles of one layer, from the first command's first word: until the last state left its compute half, until all
    results were at all nodes. `outputs` [Hq, d]; `error` is their largest difference from float64 over the largest
    output. `exact_states` and `exact_results`: how many were compared, each bit by bit.
    """

    attention_cycles: int
    cycles: int
    outputs: NDArray[np.float64]
    error: float
    exact_states: int
    exact_results: int


@dataclass(frozen=True, kw_only=True)
class ProductRun:
    """A matrix product on one node: wide beats that its memory gave, cycles, whether rows are the model's."""

    rows: int
    columns: int
    beats: int
    cycles: int
    is_exact: bool

    @property
    def memory_busy(self) -> float:
        """The share of cycles in which the ports brought a wide beat."""
        return self.beats / self.cycles


@dataclass(frozen=True, kw_only=True, eq=False)
class DecodeRun:
    """What a run gave. `read_beats` [node][port]: the compute half's four ports, then the one for payload; of `counts`
    each node's own counters; `link_beats` over all links.
    """

    case: DecodeCase
    layers: list[LayerRun]
    product: ProductRun
    read_beats: list[list[int]]
    counts: list[dict[str, int]]
    link_beats: int
    cycles: int

    @property
    def attention_cycles(self) -> int:
        """Of all layers."""
        return sum(layer.attention_cycles for layer in self.layers)

    @property
    def merge_cycles(self) -> int:
        """Cycles after the last state of each layer, until its results are everywhere."""
        return sum(layer.cycles - layer.attention_cycles for layer in self.layers)

    @property
    def fullest(self) -> list[int]:
        """Beats by port of the node whose memory gave most."""
        return max(self.read_beats, key=sum)

    @property
    def memory_busy(self) -> float:
        """The share of attention's cycles in which a port of the fullest node's compute half brought a beat."""
        return sum(self.fullest[:NUM_PORTS]) / (NUM_PORTS * self.attention_cycles)

    @property
    def array_busy(self) -> float:
        """The share of attention's cycles in which the fullest node's array multiplies: each wide beat of keys and
        values that memory gave, once per query head. Tiles come through all ports, queries through the first alone.
        """
        shape, wide_beats = self.case.shape, min(self.fullest[:NUM_PORTS])
        numbers = shape.head_dim + ROWS  # beats of a tile of keys and one of values that are no scales
        multiplied = wide_beats * numbers / (numbers + 2 * SCALE_BEATS) * shape.num_group_heads
        return multiplied / self.attention_cycles

    @property
    def merged_states(self) -> int:
        """Results that reduction units sent on."""
        return sum(count["merged"] for count in self.counts)

    @property
    def measured(self) -> Measured:
        """What a token's arithmetic takes from this run."""
        count = len(self.layers)
        return Measured(
            beats_per_cycle=self.product.memory_busy,
            attention_cycles=self.attention_cycles / count,
            merge_cycles=self.merge_cycles / count,
        )
