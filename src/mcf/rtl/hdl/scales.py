"""A tile's scales, which come as wide beats, one by one."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.gemv import ROWS, WIDE_BITS
from mcf.rtl.golden.scale_acc import SCALE_BITS
from mcf.rtl.hdl.select import tree

PER_BEAT = WIDE_BITS // SCALE_BITS
BEATS_PER_TILE = ROWS // PER_BEAT


class Scales(Component):
    """`wide`: 32 scales in each, those of two tiles find room. `scales`: one per cycle, lowest bits first."""

    def __init__(self) -> None:
        super().__init__({"wide": In(stream.Signature(WIDE_BITS)), "scales": Out(stream.Signature(SCALE_BITS))})

    def elaborate(self, platform: object) -> Module:
        """A queue of wide beats, and a register behind its selection."""
        m = Module()
        m.submodules.queue = queue = SyncFIFO(width=WIDE_BITS, depth=2 * BEATS_PER_TILE)
        index, advance = Signal(range(PER_BEAT)), Signal()
        words = [queue.r_data.word_select(i, SCALE_BITS) for i in range(PER_BEAT)]
        m.d.comb += [
            *(queue.w_data.eq(self.wide.payload), queue.w_en.eq(self.wide.valid), self.wide.ready.eq(queue.w_rdy)),
            advance.eq(queue.r_rdy & (~self.scales.valid | self.scales.ready)),
            queue.r_en.eq(advance & index.all()),
        ]
        m.d.sync += [
            index.eq(index + advance),
            self.scales.valid.eq(advance | (self.scales.valid & ~self.scales.ready)),
        ]
        with m.If(advance):
            m.d.sync += self.scales.payload.eq(tree(list(index), words))
        return m
