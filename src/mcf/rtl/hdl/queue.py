"""A short queue of items, in LUTRAM, with a register behind it: all outputs come from registers and both ends are
short ways, because two pointers count the places and not a level that both ends change.
"""

from amaranth.hdl import Module, ShapeLike, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out


class Queue(wiring.Component):
    """Passes items of `shape` in two cycles; `depth` wait beside the one that is offered, `level` says how many."""

    def __init__(self, shape: ShapeLike, *, depth: int) -> None:
        assert depth & (depth - 1) == 0, "expected a power of two"
        self.depth = depth
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Pointers are one bit wider than an address: equal ones mean empty."""
        m = Module()
        source, sink = self.input, self.output
        m.submodules.ram = ram = Memory(shape=len(Value.cast(source.payload)), depth=self.depth, init=[])
        write, read = ram.write_port(), ram.read_port(domain="comb")
        written, taken = Signal(range(2 * self.depth)), Signal(range(2 * self.depth))
        advance = Signal()
        m.d.comb += [
            *(self.level.eq(written - taken), source.ready.eq((written ^ taken) != self.depth)),
            *(write.en.eq(source.valid & source.ready), write.addr.eq(written), write.data.eq(source.payload)),
            *(read.addr.eq(taken), advance.eq((written != taken) & (~sink.valid | sink.ready))),
        ]
        m.d.sync += [written.eq(written + write.en), sink.valid.eq(advance | (sink.valid & ~sink.ready))]
        with m.If(advance):
            m.d.sync += [taken.eq(taken + 1), Value.cast(sink.payload).eq(read.data)]
        return m
