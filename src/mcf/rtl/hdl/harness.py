"""What stands around a module on a part with too few pins: registers on every port, and two wires outward."""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class Harness(wiring.Component):
    """Inputs of the module are the bits of a shift register; its outputs are caught while `catch`, else shifted out."""

    def __init__(self, inside: Any) -> None:
        super().__init__({"shift_in": In(1), "catch": In(1), "shift_out": Out(1)})
        self.inside = inside

    def elaborate(self, platform: object) -> Module:
        """Tie every port to its register."""
        m = Module()
        m.submodules.inside = self.inside
        ins: list[Value] = []
        outs: list[Value] = []
        for _, member, value in self.inside.signature.flatten(self.inside):
            signal = Value.cast(value)
            if not isinstance(signal, Const):
                (ins if member.flow == In else outs).append(signal)
        given = Signal(max(1, len(Cat(ins))))
        caught = Signal(max(1, len(Cat(outs))))
        m.d.sync += [
            given.eq(Cat(self.shift_in, given)),
            caught.eq(Mux(self.catch, Cat(outs), caught >> 1)),
        ]
        m.d.comb += [Cat(ins).eq(given), self.shift_out.eq(caught[0])]
        return m
