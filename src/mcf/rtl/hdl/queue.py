"""A short queue of items, in LUTRAM; both readys and valids come from registers."""

from amaranth.hdl import Module, ShapeLike, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out


class Queue(wiring.Component):
    """Passes items of `shape`; up to `depth` wait, `level` says how many."""

    def __init__(self, shape: ShapeLike, *, depth: int) -> None:
        self.depth = depth
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Amaranth's queue, with streams of a shape."""
        m = Module()
        source, sink = self.input, self.output
        m.submodules.fifo = fifo = SyncFIFO(width=len(Value.cast(source.payload)), depth=self.depth)
        m.d.comb += [
            *(fifo.w_data.eq(source.payload), fifo.w_en.eq(source.valid), source.ready.eq(fifo.w_rdy)),
            *(Value.cast(sink.payload).eq(fifo.r_data), sink.valid.eq(fifo.r_rdy), fifo.r_en.eq(sink.ready)),
            self.level.eq(fifo.level),
        ]
        return m
