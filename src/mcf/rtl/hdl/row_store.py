"""Rows of 32 bits, four to a beat."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.scale_acc import ROW_BITS
from mcf.rtl.hdl.beat import BEAT_BITS

PER_BEAT = BEAT_BITS // ROW_BITS


class RowStore(Component):
    """`rows`: one per cycle. `beats`: four of them, the first in the lowest bits."""

    def __init__(self) -> None:
        super().__init__({"rows": In(stream.Signature(ROW_BITS)), "beats": Out(stream.Signature(BEAT_BITS))})

    def elaborate(self, platform: object) -> Module:
        """Three rows wait for the fourth; it waits while the last beat is not taken."""
        m = Module()
        held, index = Signal(BEAT_BITS - ROW_BITS), Signal(range(PER_BEAT))
        m.d.comb += self.rows.ready.eq(~self.beats.valid | ~index.all())
        with m.If(self.beats.ready):
            m.d.sync += self.beats.valid.eq(0)
        with m.If(self.rows.valid & self.rows.ready):
            m.d.sync += [held.eq(Cat(held, self.rows.payload) >> ROW_BITS), index.eq(index + 1)]
            with m.If(index.all()):
                m.d.sync += [self.beats.payload.eq(Cat(held, self.rows.payload)), self.beats.valid.eq(1)]
        return m
