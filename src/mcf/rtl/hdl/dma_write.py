"""Writes memory for requests: several bursts under way, each asked for only when all of its beats are there."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
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

    cuts = Bursts

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
        self.cutter, self.beats = self.cuts(), BeatFifo(self.depth)
        self.answers = SyncFIFO(width=2, depth=self.outstanding)  # of each burst: is the last, is empty
        self.there, self.left = Signal(range(self.depth + 2)), Signal(range(BURST_BEATS + 1))
        self.next, self.is_next = Signal.like(self.left), Signal()  # the burst to be sent after the one of `left` beats
        m.submodules.cutter, m.submodules.beats, m.submodules.answers = self.cutter, self.beats, self.answers
        wiring.connect(m, wiring.flipped(self.requests), self.cutter.requests)
        m.d.comb += [
            self.data.ready.eq(self.beats.level != self.depth),
            self.beats.w_en.eq(self.data.valid & self.data.ready),
            self.beats.w_beat.data.eq(self.data.payload),
        ]
        asks, starts = Signal(), Signal()
        self._ask(m, asks)
        self._send(m, starts)
        self._collect(m)
        m.d.sync += self.is_next.eq(asks | (self.is_next & ~starts))
        return m

    def _ask(self, m: Module, asks: Signal) -> None:
        """A burst becomes an address when its beats are there and the one before it is being sent."""
        burst, is_there, goes, is_empty = self.cutter.bursts.payload, Signal(), self.cutter.bursts.ready, Signal()
        m.d.comb += [
            is_empty.eq(burst.beats == 0),
            goes.eq(is_there & self._is_below_limit() & self._is_free()),
            asks.eq(goes & ~is_empty),
            self.answers.w_en.eq(goes),
            self.answers.w_data.eq(Cat(burst.last, is_empty)),
        ]
        m.d.sync += [
            is_there.eq(self.cutter.bursts.valid & self._has_beats() & ~goes),
            self.there.eq(self.there + self.beats.w_en - Mux(asks, burst.beats, 0)),
            self.axi.awvalid.eq(asks | (self.axi.awvalid & ~self.axi.awready)),
        ]
        with m.If(asks):
            m.d.sync += [self.axi.awaddr.eq(burst.address), self.axi.awlen.eq(burst.beats - 1)]
            m.d.sync += self.next.eq(burst.beats)

    def _has_beats(self) -> Value:
        return self.there >= self.cutter.bursts.payload.beats

    def _is_below_limit(self) -> Value:
        return self.answers.w_rdy

    def _is_free(self) -> Value:
        return ~self.is_next & ~self.axi.awvalid

    def _send(self, m: Module, starts: Signal) -> None:
        """Beats leave with the last of a burst marked; the next burst follows without a gap."""
        stored, moves = self.beats.output, Signal()
        m.d.comb += [
            self.axi.wdata.eq(stored.payload.data),
            self.axi.wstrb.eq((1 << BEAT_BYTES) - 1),
            self.axi.wlast.eq(self.left == 1),
            self.axi.wvalid.eq(stored.valid & (self.left != 0)),
            stored.ready.eq(self.axi.wready & (self.left != 0)),
            moves.eq(self.axi.wvalid & self.axi.wready),
            starts.eq(self.is_next & ((self.left == 0) | (moves & self.axi.wlast))),
        ]
        m.d.sync += self.left.eq(Mux(starts, self.next, self.left - moves))

    def _collect(self, m: Module) -> None:
        """Answers come in the order of the bursts; one of no beats needs none."""
        is_last, is_empty = self.answers.r_data
        ends, is_bad, was_bad = Signal(), Signal(), Signal()
        m.d.comb += [
            self.axi.bready.eq(self.answers.r_rdy & ~is_empty),
            ends.eq(self.answers.r_rdy & (is_empty | self.axi.bvalid)),
            is_bad.eq(is_error(self.axi.bresp) & ~is_empty),
            self.answers.r_en.eq(ends),
        ]
        m.d.sync += [
            self.failed.eq(ends & is_bad),
            self.done.valid.eq(ends & is_last),
            self.done.payload.eq(was_bad | is_bad),
        ]
        with m.If(ends):
            m.d.sync += was_bad.eq(~is_last & (was_bad | is_bad))
