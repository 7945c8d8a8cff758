"""Writes memory for requests: several bursts under way, each asked for only when all of its beats are there."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.axi import BURST_BEATS, AxiWrite, Bursts, RequestStream, is_error
from mcf.rtl.hdl.beat import BEAT_BITS, BEAT_BYTES
from mcf.rtl.hdl.fifo import BeatFifo


class DmaWrite(wiring.Component):
    """Stores the next `beats` beats of `data` at `address` for each request, in order, a beat per cycle.

    `done` comes once per request, in order, when its last burst was answered: 1 where memory answered one of its bursts
    with an error; each such answer also pulses `failed`. At most `outstanding` bursts wait for their answers, `depth`
    beats for their turn; the port is never kept busy waiting for `data`. Golden model: `mcf.rtl.golden.dma`.
    """

    def __init__(self, *, depth: int = 32, outstanding: int = 16) -> None:
        assert depth >= 2 * BURST_BEATS, "expected room for two bursts"
        self.depth, self.outstanding = depth, outstanding
        super().__init__(
            {
                "requests": In(RequestStream),
                "data": In(stream.Signature(BEAT_BITS)),
                "done": Out(stream.Signature(1, always_ready=True)),
                "failed": Out(1),
                "axi": Out(AxiWrite),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Store, ask, send, and collect the answers."""
        m = Module()
        m.submodules.bursts = bursts = Bursts()
        m.submodules.beats = beats = BeatFifo(self.depth)
        m.submodules.answers = answers = SyncFIFO(width=2, depth=self.outstanding)  # per burst: is the last, is empty
        wiring.connect(m, wiring.flipped(self.requests), bursts.requests)
        m.d.comb += [
            self.data.ready.eq(beats.level != self.depth),
            beats.w_en.eq(self.data.valid & self.data.ready),
            beats.w_beat.data.eq(self.data.payload),
        ]
        taken, length, is_next = Signal(), Signal(range(BURST_BEATS + 1)), Signal()
        self._ask(m, bursts, beats, answers, (taken, length, is_next))
        self._send(m, beats, taken, length, is_next)
        self._collect(m, answers)
        return m

    def _ask(
        self, m: Module, bursts: Bursts, beats: BeatFifo, answers: SyncFIFO, following: tuple[Signal, ...]
    ) -> None:
        """A burst becomes an address when its beats are there and the one before it is being sent."""
        taken, length, is_next = following
        there, is_there = Signal(range(self.depth + 2)), Signal()  # beats that no burst has claimed
        burst, asks, is_empty = bursts.bursts.payload, Signal(), Signal()
        goes = bursts.bursts.ready
        m.d.comb += [
            is_empty.eq(burst.beats == 0),
            goes.eq(is_there & answers.w_rdy & ~is_next & ~self.axi.awvalid),
            asks.eq(goes & ~is_empty),
            answers.w_en.eq(goes),
            answers.w_data.eq(Cat(burst.last, is_empty)),
        ]
        m.d.sync += [
            is_there.eq(bursts.bursts.valid & (there >= burst.beats) & ~goes),
            there.eq(there + beats.w_en - Mux(asks, burst.beats, 0)),
            self.axi.awvalid.eq(asks | (self.axi.awvalid & ~self.axi.awready)),
            is_next.eq(asks | (is_next & ~taken)),
        ]
        with m.If(asks):
            m.d.sync += [self.axi.awaddr.eq(burst.address), self.axi.awlen.eq(burst.beats - 1), length.eq(burst.beats)]

    def _send(self, m: Module, beats: BeatFifo, taken: Signal, length: Signal, is_next: Signal) -> None:
        """Beats leave with the last of a burst marked; the next burst follows without a gap."""
        left, moves = Signal(range(BURST_BEATS + 1)), Signal()
        m.d.comb += [
            self.axi.wdata.eq(beats.output.payload.data),
            self.axi.wstrb.eq((1 << BEAT_BYTES) - 1),
            self.axi.wlast.eq(left == 1),
            self.axi.wvalid.eq(beats.output.valid & (left != 0)),
            beats.output.ready.eq(self.axi.wready & (left != 0)),
            moves.eq(self.axi.wvalid & self.axi.wready),
            taken.eq(is_next & ((left == 0) | (moves & self.axi.wlast))),
        ]
        m.d.sync += left.eq(Mux(taken, length, left - moves))

    def _collect(self, m: Module, answers: SyncFIFO) -> None:
        """Answers come in the order of the bursts; one of no beats needs none."""
        is_last, is_empty = answers.r_data
        ends, is_bad, was_bad = Signal(), Signal(), Signal()
        m.d.comb += [
            self.axi.bready.eq(answers.r_rdy & ~is_empty),
            ends.eq(answers.r_rdy & (is_empty | self.axi.bvalid)),
            is_bad.eq(is_error(self.axi.bresp) & ~is_empty),
            answers.r_en.eq(ends),
        ]
        m.d.sync += [
            self.failed.eq(ends & is_bad),
            self.done.valid.eq(ends & is_last),
            self.done.payload.eq(was_bad | is_bad),
        ]
        with m.If(ends):
            m.d.sync += was_bad.eq(~is_last & (was_bad | is_bad))
