"""Joins metadata and payload into packets: a header leaves only when all of its payload is there."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.fifo import BeatFifo
from mcf.rtl.hdl.meta import Meta, header_crc

MetaStream = stream.Signature(Meta)


class Packetizer(wiring.Component):
    """Payload comes as runs of beats, each closed by `last`: one run for each meta whose `len` is not 0, in order.

    A meta and its run leave together, with `hcrc` filled in, a beat per cycle and one more for the header, as soon as
    the run is complete: a packet never starves on its way. Where the run has another length than the meta says, or
    more than `max_beats`, both are dropped, with a pulse on `dropped`. `starved` says that a meta
    waits for its run. Up to `metas` metas and `depth` beats wait.
    """

    def __init__(self, *, depth: int = 1024, metas: int = 64, max_beats: int = 64) -> None:
        assert depth > max_beats + 1, "expected room for a whole run of payload"
        self.depth, self.metas, self.max_beats = depth, metas, max_beats
        self.lengths = range(max_beats + 2)  # of a run: one more than a packet holds stands for all longer ones
        super().__init__(
            {
                "meta": In(MetaStream),
                "payload": In(BeatStream),
                "packets": Out(BeatStream),
                "dropped": Out(1),
                "starved": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Two queues, the lengths of the runs, and the joiner."""
        m = Module()
        m.submodules.metas = metas = SyncFIFO(width=Meta.size, depth=self.metas)
        m.submodules.runs = runs = SyncFIFO(width=Signal(self.lengths).shape().width, depth=self.metas)
        m.submodules.beats = beats = BeatFifo(self.depth, whole=True)
        m.d.comb += [
            metas.w_data.eq(self.meta.payload),
            metas.w_en.eq(self.meta.valid),
            self.meta.ready.eq(metas.w_rdy),
        ]
        self._store(m, runs, beats)
        self._join(m, metas, runs, beats)
        return m

    def _store(self, m: Module, runs: SyncFIFO, beats: BeatFifo) -> None:
        """Count a run; of one that is too long the first beats are stored and taken back with its last one."""
        count, enters, fits, has_room = Signal(self.lengths), Signal(), Signal(), Signal()
        m.d.sync += has_room.eq(beats.level < self.depth - 1)  # a cycle old: a beat may have come since
        m.d.comb += [
            self.payload.ready.eq(runs.w_rdy & has_room),
            enters.eq(self.payload.valid & self.payload.ready),
            fits.eq(count < self.max_beats),
            beats.w_beat.eq(self.payload.payload),
            beats.w_en.eq(enters & (fits | self.payload.payload.last)),
            beats.w_abort.eq(~fits),
            runs.w_data.eq(count + 1),
            runs.w_en.eq(enters & self.payload.payload.last),
        ]
        with m.If(enters):
            m.d.sync += count.eq(Mux(self.payload.payload.last, 0, Mux(fits, count + 1, count)))

    def _join(self, m: Module, metas: SyncFIFO, runs: SyncFIFO, beats: BeatFifo) -> None:
        """Seal the next header while a packet leaves; then compare, send or drop."""
        sealed, is_sealed, takes = Signal(Meta), Signal(), Signal()
        left, discards, free = Signal(self.lengths), Signal(), Signal()
        needs_run, ready, good = Signal(), Signal(), Signal()
        self._seal(m, metas, sealed, is_sealed, takes)
        idle = left == 0
        m.d.comb += [
            free.eq(~self.packets.valid | self.packets.ready),
            needs_run.eq(sealed.len != 0),
            ready.eq(is_sealed & idle & free & (~needs_run | runs.r_rdy)),
            good.eq(~needs_run | ((runs.r_data == sealed.len) & (runs.r_data <= self.max_beats))),
            takes.eq(ready),
            self.starved.eq(is_sealed & idle & needs_run & ~runs.r_rdy),
            runs.r_en.eq(ready & needs_run),
            beats.output.ready.eq(~idle & (discards | free)),
        ]
        moves = beats.output.valid & beats.output.ready
        m.d.sync += self.dropped.eq(ready & ~good)
        with m.If(free):
            m.d.sync += self.packets.valid.eq((ready & good) | (moves & ~discards))
            m.d.sync += self.packets.payload.data.eq(Mux(idle, sealed, beats.output.payload.data))
            m.d.sync += self.packets.payload.last.eq(Mux(idle, ~needs_run, left == 1))
        with m.If(ready):
            stored = runs.r_data <= self.max_beats
            m.d.sync += [left.eq(Mux(needs_run & stored, runs.r_data, 0)), discards.eq(~good)]
        with m.If(moves):
            m.d.sync += left.eq(left - 1)

    def _seal(self, m: Module, metas: SyncFIFO, sealed: Signal, is_sealed: Signal, takes: Signal) -> None:
        loads = metas.r_rdy & (~is_sealed | takes)
        crc = header_crc(m, metas.r_data)
        m.d.comb += metas.r_en.eq(loads)
        m.d.sync += is_sealed.eq(loads | (is_sealed & ~takes))
        with m.If(loads):
            m.d.sync += sealed.eq(metas.r_data)
            m.d.sync += sealed.hcrc.eq(crc)
