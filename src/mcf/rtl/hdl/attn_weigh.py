"""The second pass of the attention unit over a tile: scores become weights, their sum, and products with V's scales."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import enum, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.attention import ACTIVATION_BITS, FRACTION_BITS, PRODUCT_SHIFT, ROWS, SCORE_BITS, TABLE, WEIGHT_BITS
from mcf.rtl.hdl.attn_tile import (
    INDEX_BITS,
    PAGES,
    PRODUCT_BITS,
    SHIFT_BITS,
    SUM_BITS,
    ScaleStream,
    Scored,
    Tile,
    Weighed,
    rounded,
    shifted,
    with_carry,
)
from mcf.rtl.hdl.dsp import Dsp, Z

_DEPTH = 8  # cycles from a scale to its product
_LOOKED_UP = 3  # of them to the table's answer
_DROP_BITS = 5
_TOTAL_BITS = PRODUCT_BITS + INDEX_BITS


class Step(enum.Enum):
    """Wait for scores, take scales, let the last ones pass, find the shift, hand over."""

    WAIT = 0
    SCALES = 1
    FLUSH = 2
    SHIFT = 3
    DONE = 4


class AttnWeigh(Component):
    """Reads a page of scores, writes a page of products.

    `scored` and, for each with tokens, 128 `scales`. `read` and `read_address` ask the memory of scores, which answers
    a cycle later on `score`; `released` frees its page. `write`, `address` and `data` go to the memory of products;
    `weighed` hands its page over, `release` gives it back. `tiles` tells the accumulators.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "scored": In(stream.Signature(Scored)),
                "scales": In(ScaleStream),
                "read": Out(1),
                "read_address": Out(INDEX_BITS + 1),
                "score": In(signed(SCORE_BITS)),
                "released": Out(1),
                "weighed": Out(stream.Signature(Weighed)),
                "release": In(1),
                "write": Out(1),
                "address": Out(INDEX_BITS + 1),
                "data": Out(PRODUCT_BITS),
                "tiles": Out(stream.Signature(Tile)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The state machine, the weights, and the sums behind them."""
        m = Module()
        self.step, self.tile = Signal(Step), Signal(Scored)
        self.take, self.begins = Signal(), Signal()
        self.total, self.sum = Signal(_TOTAL_BITS), Signal(SUM_BITS)
        m.d.comb += [
            self.take.eq(self.scales.valid & self.scales.ready),
            self.begins.eq(self.scored.valid & self.scored.ready),
        ]
        self.valids = [Signal(name=f"valid{i}") for i in range(_DEPTH)]
        for before, after in zip([self.take, *self.valids], self.valids, strict=False):
            m.d.sync += after.eq(before)
        self._steps(m)
        self._hand_over(m)
        self._multiply(m, self._weight(m))
        return m

    def _steps(self, m: Module) -> None:
        count, counts = Signal(INDEX_BITS), Signal()
        self.counts = [Signal(name=f"counts{i}") for i in range(_LOOKED_UP)]  # whether the score is one that counts
        for before, after in zip([counts, *self.counts], self.counts, strict=False):
            m.d.sync += after.eq(before)
        m.d.comb += [
            self.scales.ready.eq(self.step == Step.SCALES),
            counts.eq(count < self.tile.tokens),
            *(self.read.eq(self.take), self.read_address.eq(Cat(count, self.tile.page))),
        ]
        is_flushed = (self.step == Step.FLUSH) & ~Cat(*self.valids).any()
        with m.Switch(self.step):
            with m.Case(Step.WAIT):
                m.d.sync += self.tile.eq(self.scored.payload)
                with m.If(self.begins):
                    m.d.sync += self.step.eq(Mux(self.scored.payload.tokens == 0, Step.DONE, Step.SCALES))
            with m.Case(Step.SCALES), m.If(self.take):
                m.d.sync += count.eq(count + 1)
                with m.If(count == ROWS - 1):
                    m.d.sync += self.step.eq(Step.FLUSH)
            with m.Case(Step.FLUSH), m.If(is_flushed):
                m.d.sync += self.step.eq(Step.SHIFT)
            with m.Case(Step.SHIFT):
                m.d.sync += self.step.eq(Step.DONE)

    def _hand_over(self, m: Module) -> None:
        """Both who wait for the tile take it, each when it can; then the page of scores is free."""
        free, page = Signal(range(PAGES + 1), init=PAGES), Signal()
        offer, rest = Signal(2), Signal(2)  # to the accumulators, to the next pass
        is_empty, shift = self.tile.tokens == 0, Signal(SHIFT_BITS)
        m.d.comb += [
            self.scored.ready.eq((self.step == Step.WAIT) & (free != 0)),
            Cat(self.tiles.valid, self.weighed.valid).eq(offer),
            rest.eq(offer & ~Cat(self.tiles.ready, self.weighed.ready)),
            self.address[-1].eq(page),
            *(self.weighed.payload.page.eq(page), self.weighed.payload.tokens.eq(self.tile.tokens)),
            *(self.tiles.payload.exponent.eq(self.tile.exponent), self.tiles.payload.is_empty.eq(is_empty)),
            *(self.tiles.payload.shift.eq(shift), self.weighed.payload.shift.eq(shift)),
            self.tiles.payload.sum.eq(self.sum),
        ]
        for name in ("slot", "finish", "child"):
            m.d.comb += self.tiles.payload[name].eq(self.tile[name])
        begins_empty = self.begins & (self.scored.payload.tokens == 0)
        with m.If(self.step == Step.SHIFT):
            m.d.sync += [shift.eq(self._shift(m)), offer.eq(3)]
        with m.Elif(begins_empty):
            m.d.sync += offer.eq(1)
        with m.Else():
            m.d.sync += offer.eq(rest)
        ends = (self.step == Step.DONE) & (rest == 0)
        with m.If(ends):
            m.d.sync += [self.step.eq(Step.WAIT), page.eq(page ^ ~is_empty)]
        m.d.comb += self.released.eq(ends)
        m.d.sync += free.eq(free - (self.begins & ~begins_empty) + self.release)

    def _shift(self, m: Module) -> Signal:
        """How far the total reaches above 17 bits."""
        shift = Signal(SHIFT_BITS)
        for bit in range(PRODUCT_SHIFT):
            with m.If(self.total[ACTIVATION_BITS + bit]):
                m.d.comb += shift.eq(bit + 1)
        return shift

    def _weight(self, m: Module) -> Signal:
        """2^(score - exponent): what the score lacks, its fraction looked up, shifted by the rest, rounded."""
        drop, far = Signal(SCORE_BITS + 2), Signal()
        m.d.sync += drop.eq((self.tile.exponent << FRACTION_BITS) - self.score)
        whole = Signal(_DROP_BITS)
        m.d.comb += far.eq(drop[FRACTION_BITS + _DROP_BITS :].any())
        m.d.sync += whole.eq(drop[FRACTION_BITS:] | far.replicate(_DROP_BITS))
        m.submodules.table = table = Memory(shape=WEIGHT_BITS + 1, depth=len(TABLE), init=TABLE.tolist())
        port = table.read_port()
        m.d.comb += port.addr.eq(drop[:FRACTION_BITS])
        weight, high = Signal(WEIGHT_BITS + 1), Signal(signed(WEIGHT_BITS + 3))
        m.d.comb += high.eq(shifted(m, with_carry(Cat(port.data, Const(0, 1))), whole, 1, WEIGHT_BITS + 1))
        m.d.sync += weight.eq(Mux(self.counts[-1], rounded(high), 0))
        return weight

    def _multiply(self, m: Module, weight: Signal) -> None:
        """The product with the scale, and both sums."""
        m.submodules.dsp = dsp = Dsp()
        scales = [Signal(len(self.scales.payload), name=f"scale{i}") for i in range(_LOOKED_UP + 1)]
        for before, after in zip([self.scales.payload, *scales], scales, strict=False):
            m.d.sync += after.eq(before)
        index: Any = self.address[:INDEX_BITS]
        at = Signal(INDEX_BITS)
        m.d.comb += [
            *(dsp.a.eq(weight), dsp.b.eq(scales[-1]), dsp.z.eq(Z.NOTHING), dsp.ce.eq(1), dsp.ce_p.eq(1)),
            *(self.write.eq(self.valids[-1]), self.data.eq(dsp.p), index.eq(at)),
        ]
        with m.If(self.begins):
            m.d.sync += [self.sum.eq(0), self.total.eq(0)]
        with m.If(self.valids[_LOOKED_UP]):
            m.d.sync += self.sum.eq(self.sum + weight)
        with m.If(self.valids[-1]):
            m.d.sync += [self.total.eq(self.total + self.data), at.eq(at + 1)]
