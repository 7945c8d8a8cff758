"""Two places between a stream and the next, so that neither side's ready depends on the other's in the same cycle."""

from amaranth.hdl import Module, Mux, ShapeLike, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Skid(wiring.Component):
    """Passes items of `shape` with one cycle of delay, one per cycle; all outputs come from registers."""

    def __init__(self, shape: ShapeLike) -> None:
        self.shape = shape
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform: object) -> Module:
        """The spare place fills when an item arrives and the output is stalled; then the input has to wait."""
        m = Module()
        spare, is_spare = Signal(self.shape), Signal()
        m.d.comb += self.input.ready.eq(~is_spare)
        with m.If(self.output.valid & ~self.output.ready):
            m.d.sync += [spare.eq(Mux(is_spare, spare, self.input.payload)), is_spare.eq(is_spare | self.input.valid)]
        with m.Elif(is_spare):
            m.d.sync += [self.output.payload.eq(spare), self.output.valid.eq(1), is_spare.eq(0)]
        with m.Else():
            m.d.sync += [self.output.payload.eq(self.input.payload), self.output.valid.eq(self.input.valid)]
        return m
