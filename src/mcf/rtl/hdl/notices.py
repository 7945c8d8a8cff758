"""What control packets say to hardware itself: a BARRIER arrives at the barrier, a CREDIT with a tag sets an event."""

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.meta import Meta
from mcf.schedule.wire import FIELDS, Op

TAG_BITS = FIELDS["tag"].width


class Notices(Component):
    """Takes BARRIER packets (their tag leaves by `arrivals`) and CREDIT packets whose tag is not 0 (by `sets`).

    All others pass to `others` as they are. A taken packet's payload, which it should not have, is dropped.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "packets": In(BeatStream),
                "others": Out(BeatStream),
                "arrivals": Out(stream.Signature(TAG_BITS)),
                "sets": Out(stream.Signature(TAG_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Judge each header; its packet's further beats follow it."""
        m = Module()
        header, packets = Meta(self.packets.payload.data), self.packets
        at_header, drops = Signal(init=1), Signal()
        m.d.comb += [self.arrivals.payload.eq(header.tag), self.sets.payload.eq(header.tag)]
        m.d.comb += self.others.payload.eq(packets.payload)
        takes = Signal()
        with m.If(~at_header & drops):
            m.d.comb += packets.ready.eq(1)
        with m.Elif(at_header & (header.op == Op.BARRIER)):
            m.d.comb += [self.arrivals.valid.eq(packets.valid), packets.ready.eq(self.arrivals.ready), takes.eq(1)]
        with m.Elif(at_header & (header.op == Op.CREDIT) & (header.tag != 0)):
            m.d.comb += [self.sets.valid.eq(packets.valid), packets.ready.eq(self.sets.ready), takes.eq(1)]
        with m.Else():
            m.d.comb += [self.others.valid.eq(packets.valid), packets.ready.eq(self.others.ready)]
        with m.If(packets.valid & packets.ready):
            m.d.sync += at_header.eq(packets.payload.last)
            with m.If(at_header):
                m.d.sync += drops.eq(takes)
        return m
