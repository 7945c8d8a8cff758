"""Parses the packets that reach a node and hands each to the unit that its header names."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.beat import Beat, BeatStream
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.hdl.skid import Skid
from mcf.rtl.units import Unit, unit_of
from mcf.schedule.wire import FIELDS, Op

_Marked = data.StructLayout({"beat": Beat, "unit": len(Unit)})


class Dispatch(wiring.Component):
    """Packets come whole and checked, as the router hands them out; a beat per cycle, one cycle later at its unit.

    Which unit it is says `mcf.rtl.units`. A packet whose operation has no name is dropped, with a pulse on `dropped`.
    A unit that does not take its packet holds up those behind it: units take what comes without waiting for what they
    send.
    """

    def __init__(self) -> None:
        units = {unit.name.lower(): Out(BeatStream) for unit in Unit}
        super().__init__({"packets": In(BeatStream), **units, "dropped": Out(1)})

    def elaborate(self, platform: object) -> Module:
        """Mark each beat with its unit, one bit for each, ahead of a skid buffer."""
        m = Module()
        m.submodules.skid = skid = Skid(_Marked)
        at_header, unit, kept = Signal(init=1), Signal(len(Unit)), Signal(len(Unit))
        m.d.comb += unit.eq(Mux(at_header, self._unit(m), kept))
        m.d.comb += [
            skid.input.payload.beat.eq(self.packets.payload),
            skid.input.payload.unit.eq(unit),
            skid.input.valid.eq(self.packets.valid & unit.any()),
            self.packets.ready.eq(skid.input.ready),
        ]
        passes = self.packets.valid & self.packets.ready
        m.d.sync += self.dropped.eq(passes & at_header & ~unit.any())
        with m.If(passes):
            m.d.sync += [at_header.eq(self.packets.payload.last), kept.eq(unit)]
        self._hand_out(m, skid)
        return m

    def _unit(self, m: Module) -> Signal:
        header, unit = Meta(self.packets.payload.data), Signal(len(Unit))
        with m.Switch(header.op):
            for op in range(FIELDS["op"].limit):
                with m.Case(op):
                    m.d.comb += unit.eq(_bit(op, reduce_op=0))
        with m.If((header.op == Op.STATE) & (header.reduce_op != 0)):
            m.d.comb += unit.eq(1 << Unit.REDUCE)
        return unit

    def _hand_out(self, m: Module, skid: Skid) -> None:
        for unit in Unit:
            output, chosen = getattr(self, unit.name.lower()), skid.output.payload.unit[unit]
            m.d.comb += [output.valid.eq(skid.output.valid & chosen), output.payload.eq(skid.output.payload.beat)]
            with m.If(chosen):
                m.d.comb += skid.output.ready.eq(output.ready)


def _bit(op: int, reduce_op: int) -> int:
    unit = unit_of(op, reduce_op)
    return 0 if unit is None else 1 << unit
