"""Joins two streams of packets into one, a whole packet at a time, in turn where both have one."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.hdl.beat import BeatStream


class Join(Component):
    """A beat per cycle; a choice takes no time. Who was served last lets the other go first."""

    def __init__(self) -> None:
        super().__init__({"inputs": In(BeatStream).array(2), "output": Out(BeatStream)})

    def elaborate(self, platform: object) -> Module:
        """Keep the chosen input until its last beat has gone."""
        m = Module()
        kept, is_open, chosen = Signal(), Signal(), Signal()
        first, second = self.inputs[0], self.inputs[1]
        both = first.valid & second.valid
        m.d.comb += [
            chosen.eq(Mux(is_open, kept, Mux(both, ~kept, second.valid))),
            self.output.valid.eq(Mux(chosen, second.valid, first.valid)),
            self.output.payload.eq(Mux(chosen, second.payload, first.payload)),
            first.ready.eq(self.output.ready & ~chosen),
            second.ready.eq(self.output.ready & chosen),
        ]
        with m.If(self.output.valid):
            m.d.sync += [kept.eq(chosen), is_open.eq(~(self.output.ready & self.output.payload.last))]
        return m
