"""Properties (1), (2) and (4) of a queue of beats: never over full, offers stay, nothing is lost or doubled."""

from amaranth.hdl import Module, Mux, Signal

from mcf.rtl.formal.bench import Bench, always, given, place, stable
from mcf.rtl.hdl.fifo import BeatFifo

DEPTH = 4


class FifoBench(Bench):
    """A writer that looks at `level` (`slack` beats too late in a mutant) and a free reader; one beat is marked."""

    def __init__(self, design: type[BeatFifo] = BeatFifo, *, slack: int = 0) -> None:
        super().__init__()
        self.design, self.slack = design, slack

    def build(self, m: Module) -> None:
        """A writer sees to it that there is room."""
        dut = place(m, "dut", self.design(DEPTH))
        write, mark = self.free("write"), self.free("mark")
        m.d.comb += [
            dut.w_en.eq(write & (dut.level < DEPTH + self.slack)),
            dut.w_beat.data[0].eq(mark),
            dut.output.ready.eq(self.free("ready")),
        ]
        stable(m, dut.output)
        always(m, dut.level <= DEPTH)
        inside, leaves = Signal(range(DEPTH + 3)), dut.output.valid & dut.output.ready
        m.d.sync += inside.eq(inside + dut.w_en - leaves)
        always(m, inside == dut.level + dut.output.valid)
        self._order(m, dut, mark, inside)

    def _order(self, m: Module, dut: BeatFifo, mark: Signal, inside: Signal) -> None:
        """The marked beat is behind as many others as were in the queue when it came."""
        marked, came = Signal(), dut.w_en & mark
        given(m, ~(mark & marked))
        with m.If(came):
            m.d.sync += marked.eq(1)
        ahead, leaves = Signal(range(DEPTH + 3)), dut.output.valid & dut.output.ready
        with m.If(came):
            m.d.sync += ahead.eq(inside - leaves + 1)
        with m.Elif(leaves & (ahead != 0)):
            m.d.sync += ahead.eq(ahead - 1)
        always(m, ~leaves | (dut.output.payload.data[0] == (ahead == 1)))


class RoomBench(FifoBench):
    """The same without the marked beat, by induction."""

    def _order(self, m: Module, dut: BeatFifo, mark: Signal, inside: Signal) -> None:
        """Nothing: what is claimed of room needs no help, what is claimed of order would."""


class WholeBench(Bench):
    """A queue of whole packets, of one to three beats; one that is taken back must never be seen."""

    def __init__(self, design: type[BeatFifo] = BeatFifo) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """Beats of packets that will be taken back are marked."""
        dut = place(m, "dut", self.design(DEPTH, whole=True))
        write, last, bad = self.free("write"), self.free("last"), self.free("bad")
        m.d.comb += [
            dut.w_en.eq(write & (dut.level < DEPTH)),
            dut.w_beat.data[0].eq(bad),
            dut.w_beat.last.eq(last),
            dut.w_abort.eq(bad),
            dut.output.ready.eq(self.free("ready")),
        ]
        length, was_bad = Signal(2), Signal()
        given(m, (length == 0) | (bad == was_bad))
        given(m, (length != 2) | last)
        with m.If(dut.w_en):
            m.d.sync += [length.eq(Mux(last, 0, length + 1)), was_bad.eq(bad)]
        stable(m, dut.output)
        always(m, ~dut.output.valid | ~dut.output.payload.data[0])


class Uncommitted(BeatFifo):
    """A mutant: a packet can be read before it is known to be whole."""

    def _committed(self, m: Module, written: Signal) -> Signal:
        super()._committed(m, written)
        return written
