"""What control packets say to hardware itself: a BARRIER arrives at the barrier, a CREDIT with a tag sets an event,
KV_DRAIN and KV_INVALIDATE move a copy in the replica directory.
"""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.kv_dir import Ask
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.kv_ops import KV_ID_BITS, KV_ID_LOW, PACKET_OPS
from mcf.schedule.wire import FIELDS, Op

TAG_BITS = FIELDS["tag"].width


class Notices(Component):
    """Takes BARRIER packets (their tag leaves by `arrivals`), CREDIT packets whose tag is not 0 (by `sets`), and those
    that end a copy, KV_DRAIN and KV_INVALIDATE (by `copies`, as operations on the entry that the header names).

    All others pass to `others` as they are. A taken packet's payload, which it should not have, is dropped.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "packets": In(BeatStream),
                "others": Out(BeatStream),
                "arrivals": Out(stream.Signature(TAG_BITS)),
                "sets": Out(stream.Signature(TAG_BITS)),
                "copies": Out(stream.Signature(Ask)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Judge each header; its packet's further beats follow it."""
        m = Module()
        header, packets = Meta(self.packets.payload.data), self.packets
        at_header, drops = Signal(init=1), Signal()
        m.d.comb += [self.arrivals.payload.eq(header.tag), self.sets.payload.eq(header.tag)]
        m.d.comb += self.others.payload.eq(packets.payload)
        drain, free = (header.op == op for op in PACKET_OPS)
        m.d.comb += [
            self.copies.p.op.eq(Mux(drain, PACKET_OPS[Op.KV_DRAIN], PACKET_OPS[Op.KV_INVALIDATE])),
            self.copies.p.kv_id.eq(packets.payload.data[KV_ID_LOW : KV_ID_LOW + KV_ID_BITS]),
        ]
        takes = Signal()
        with m.If(~at_header & drops):
            m.d.comb += packets.ready.eq(1)
        with m.Elif(at_header & (header.op == Op.BARRIER)):
            m.d.comb += [self.arrivals.valid.eq(packets.valid), packets.ready.eq(self.arrivals.ready), takes.eq(1)]
        with m.Elif(at_header & (header.op == Op.CREDIT) & (header.tag != 0)):
            m.d.comb += [self.sets.valid.eq(packets.valid), packets.ready.eq(self.sets.ready), takes.eq(1)]
        with m.Elif(at_header & (drain | free)):
            m.d.comb += [self.copies.valid.eq(packets.valid), packets.ready.eq(self.copies.ready), takes.eq(1)]
        with m.Else():
            m.d.comb += [self.others.valid.eq(packets.valid), packets.ready.eq(self.others.ready)]
        with m.If(packets.valid & packets.ready):
            m.d.sync += at_header.eq(packets.payload.last)
            with m.If(at_header):
                m.d.sync += drops.eq(takes)
        return m
