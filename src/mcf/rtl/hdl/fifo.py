"""A queue of beats in block RAM. What it writes always fits: whoever writes has seen to it that there is room."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.beat import Beat, BeatStream


class BeatFifo(wiring.Component):
    """`depth` beats (a power of two) and one more in the output register; a beat passes in two cycles.

    `level` counts the beats in the RAM, as of the last clock edge; a write at `level == depth` breaks the contract.
    With `whole` a packet can be read only once its last beat is written, and a last beat written with `w_abort` takes
    the whole packet back, with a pulse on `aborted`.
    """

    def __init__(self, depth: int, *, whole: bool = False) -> None:
        assert depth > 1, "expected room for two beats"
        assert depth & (depth - 1) == 0, "expected a power of two"
        self.depth, self.whole = depth, whole
        super().__init__(
            {
                "w_en": In(1),
                "w_beat": In(Beat),
                "w_abort": In(1),
                "aborted": Out(1),
                "level": Out(range(depth + 1)),
                "output": Out(BeatStream),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Pointers are one bit wider than an address: equal ones mean empty."""
        m = Module()
        m.submodules.ram = ram = Memory(shape=Beat, depth=self.depth, init=[])
        write, read = ram.write_port(), ram.read_port()
        written, taken = Signal(range(2 * self.depth)), Signal(range(2 * self.depth))
        readable = self._committed(m, written) if self.whole else written
        advance = Signal()
        m.d.comb += [
            write.en.eq(self.w_en),
            write.addr.eq(written),
            write.data.eq(self.w_beat),
            self.level.eq(written - taken),
            advance.eq((readable != taken) & (~self.output.valid | self.output.ready)),
            read.en.eq(advance),
            read.addr.eq(taken),
            self.output.payload.eq(read.data),
        ]
        m.d.sync += taken.eq(taken + advance)
        m.d.sync += self.output.valid.eq(advance | (self.output.valid & ~self.output.ready))
        if not self.whole:
            m.d.sync += written.eq(written + self.w_en)
        return m

    def _committed(self, m: Module, written: Signal) -> Signal:
        committed = Signal.like(written)
        ends = self.w_en & self.w_beat.last
        m.d.sync += written.eq(Mux(ends & self.w_abort, committed, written + self.w_en))
        m.d.sync += self.aborted.eq(ends & self.w_abort)
        with m.If(ends & ~self.w_abort):
            m.d.sync += committed.eq(written + 1)
        return committed
