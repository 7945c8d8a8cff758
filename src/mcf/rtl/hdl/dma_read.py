"""Reads memory for requests: several bursts under way, two pages of block RAM of which one fills while one empties."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.axi import BURST_BEATS, AxiRead, Bursts, RequestStream, is_error
from mcf.rtl.hdl.beat import BEAT_BITS
from mcf.rtl.hdl.fifo import BeatFifo


class DmaPingPong(wiring.Component):
    """Gives `beats` beats from `address` for each request, in order, a beat per cycle, with no marks between requests.

    At most `outstanding` bursts are under way, and no more beats than the `depth` (two pages of half of it) have room
    for, so the memory never waits for the reader. A beat that memory answered with an error comes with `bad`, as `data`
    of its payload, and pulses `failed` when it arrives: nothing hangs. Golden model: bytes of the memory's image.
    """

    def __init__(self, *, depth: int = 512, outstanding: int = 16) -> None:
        assert depth >= 2 * BURST_BEATS, "expected room for two bursts"
        self.depth, self.outstanding = depth, outstanding
        super().__init__(
            {
                "requests": In(RequestStream),
                "data": Out(stream.Signature(BEAT_BITS)),
                "bad": Out(1),
                "failed": Out(1),
                "axi": Out(AxiRead),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Cut requests, ask, store, hand out; the error mark stands where packets have their last bit."""
        m = Module()
        m.submodules.bursts = bursts = Bursts()
        m.submodules.pages = pages = BeatFifo(self.depth)
        wiring.connect(m, wiring.flipped(self.requests), bursts.requests)
        bad = is_error(self.axi.rresp)
        m.d.comb += [
            self.axi.rready.eq(1),
            pages.w_en.eq(self.axi.rvalid),
            pages.w_beat.data.eq(self.axi.rdata),
            pages.w_beat.last.eq(bad),
            self.data.payload.eq(pages.output.payload.data),
            self.bad.eq(pages.output.payload.last),
            self.data.valid.eq(pages.output.valid),
            pages.output.ready.eq(self.data.ready),
        ]
        m.d.sync += self.failed.eq(self.axi.rvalid & bad)
        self._ask(m, bursts)
        return m

    def _ask(self, m: Module, bursts: Bursts) -> None:
        """A burst becomes an address when all of it has room and not too many are under way."""
        promised, under_way = Signal(range(self.depth + 1)), Signal(range(self.outstanding + 1))
        burst, may, asks = bursts.bursts.payload, Signal(), Signal()
        leaves, ends = self.data.valid & self.data.ready, self.axi.rvalid & self.axi.rlast
        is_empty = burst.beats == 0
        m.d.sync += [
            may.eq(
                (promised <= self.depth - BURST_BEATS) & (under_way != self.outstanding)
            ),  # bursts are 2 cycles apart
            promised.eq(promised + Mux(asks, burst.beats, 0) - leaves),
            under_way.eq(under_way + asks - ends),
            self.axi.arvalid.eq(asks | (self.axi.arvalid & ~self.axi.arready)),
        ]
        m.d.comb += [
            bursts.bursts.ready.eq(is_empty | (may & ~self.axi.arvalid)),
            asks.eq(bursts.bursts.valid & may & ~self.axi.arvalid & ~is_empty),
        ]
        with m.If(asks):
            m.d.sync += [self.axi.araddr.eq(burst.address), self.axi.arlen.eq(burst.beats - 1)]
