"""Reads memory for requests: several bursts under way, two pages of block RAM of which one fills while one empties."""

from amaranth.hdl import Module, Mux, Signal, Value
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

    cuts = Bursts

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
        self.cutter, self.pages = self.cuts(), BeatFifo(self.depth)
        self.promised, self.under_way = Signal(range(self.depth + 1)), Signal(range(self.outstanding + 1))
        m.submodules.cutter, m.submodules.pages = self.cutter, self.pages
        wiring.connect(m, wiring.flipped(self.requests), self.cutter.requests)
        bad, stored = is_error(self.axi.rresp), self.pages.output
        m.d.comb += [
            self.axi.rready.eq(1),
            self.pages.w_en.eq(self.axi.rvalid),
            self.pages.w_beat.data.eq(self.axi.rdata),
            self.pages.w_beat.last.eq(bad),
            self.data.payload.eq(stored.payload.data),
            self.bad.eq(stored.payload.last),
            self.data.valid.eq(stored.valid),
            stored.ready.eq(self.data.ready),
        ]
        m.d.sync += self.failed.eq(self.axi.rvalid & bad)
        self._ask(m)
        return m

    def _ask(self, m: Module) -> None:
        """A burst becomes an address when all of it has room and not too many are under way."""
        burst, may, asks, is_empty = self.cutter.bursts.payload, Signal(), Signal(), Signal()
        leaves, ends = self.data.valid & self.data.ready, self.axi.rvalid & self.axi.rlast
        m.d.sync += [
            may.eq(self._has_room() & self._is_below_limit()),  # a cycle old: bursts are two cycles apart
            self.promised.eq(self.promised + Mux(asks, burst.beats, 0) - leaves),
            self.under_way.eq(self.under_way + asks - ends),
            self.axi.arvalid.eq(asks | (self.axi.arvalid & ~self.axi.arready)),
        ]
        m.d.comb += [
            is_empty.eq(burst.beats == 0),
            self.cutter.bursts.ready.eq(is_empty | (may & self._is_free())),
            asks.eq(self.cutter.bursts.valid & may & self._is_free() & ~is_empty),
        ]
        with m.If(asks):
            m.d.sync += [self.axi.araddr.eq(burst.address), self.axi.arlen.eq(burst.beats - 1)]

    def _has_room(self) -> Value:
        return self.promised <= self.depth - BURST_BEATS

    def _is_below_limit(self) -> Value:
        return self.under_way != self.outstanding

    def _is_free(self) -> Value:
        return ~self.axi.arvalid
