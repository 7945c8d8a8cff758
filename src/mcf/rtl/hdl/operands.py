"""The activations that tiles are multiplied with: from a buffer in block RAM, or from the softmax as they come."""

from amaranth.hdl import Module, Mux, Signal, signed
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.commands import NUM_PLACES, PER_PLACE
from mcf.rtl.golden.attention import ACTIVATION_BITS as WEIGHT_BITS
from mcf.rtl.golden.gemv import ACTIVATION_BITS
from mcf.rtl.hdl.attn_tile import ActivationStream
from mcf.rtl.hdl.beat import BEAT_BITS

_LANE = (PER_PLACE - 1).bit_length()
Operand = data.StructLayout({"outside": 1, "place": range(NUM_PLACES), "count": 8})


class Operands(Component):
    """`writes`: a beat of 8 activations of 16 bits for a place. `commands`: `count` activations from `place` on, or the
    next `count` of `outside`. `activations`: one per cycle.
    """

    def __init__(self) -> None:
        write = data.StructLayout({"place": range(NUM_PLACES), "data": BEAT_BITS})
        super().__init__(
            {
                "writes": In(stream.Signature(write, always_ready=True)),
                "commands": In(stream.Signature(Operand)),
                "outside": In(ActivationStream),
                "activations": Out(stream.Signature(signed(ACTIVATION_BITS))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Two stages that move together: the place is read, then one of its numbers chosen."""
        m = Module()
        m.submodules.buffer = buffer = Memory(shape=BEAT_BITS, depth=NUM_PLACES, init=[])
        write, read = buffer.write_port(), buffer.read_port()
        m.d.comb += [write.en.eq(self.writes.valid), write.addr.eq(self.writes.payload.place)]
        m.d.comb += write.data.eq(self.writes.payload.data)
        move, goes, left, is_open, is_outside = Signal(), Signal(), Signal(8), Signal(), Signal()
        number, is_last = Signal(len(read.addr) + _LANE), Signal()
        m.d.comb += [
            *(move.eq(~self.activations.valid | self.activations.ready), is_last.eq(left == 1)),
            goes.eq(is_open & move & (~is_outside | self.outside.valid)),
            self.outside.ready.eq(is_open & move & is_outside),
            *(read.en.eq(goes), read.addr.eq(number[_LANE:]), self.commands.ready.eq(~is_open)),
        ]
        chosen, was_outside, there, value = Signal(_LANE), Signal(), Signal(), Signal(WEIGHT_BITS)
        inside = read.data.word_select(chosen, 16).as_signed()
        with m.If(move):
            m.d.sync += [chosen.eq(number), was_outside.eq(is_outside), there.eq(goes), value.eq(self.outside.payload)]
            m.d.sync += self.activations.valid.eq(there)
            m.d.sync += self.activations.payload.eq(Mux(was_outside, value, inside))
        with m.If(goes):
            m.d.sync += [left.eq(left - 1), number.eq(number + 1), is_open.eq(~is_last)]
        with m.If(self.commands.ready & self.commands.valid):
            command = self.commands.payload
            m.d.sync += [
                is_open.eq(1),
                left.eq(command.count),
                is_outside.eq(command.outside),
                number.eq(command.place << _LANE),
            ]
        return m
