"""One input of the router: a small buffer, the header on its way to the shared check, and the packet's transfer."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from mcf.rtl.entry import NUM_PORTS
from mcf.rtl.hdl.beat import Beat, BeatStream
from mcf.rtl.hdl.meta import Meta


class Ingress(wiring.Component):
    """Buffers `slack` beats, so that the next packet is checked and granted while the last one moves.

    A header goes to the check (`header`, `asking` until `taken`), the verdict comes with `judged`: `outs`, none for a
    packet to be dropped, and `beats`, its payload. A packet with outputs is `waiting` for them until `grant`. It
    starts when none of its outputs is `busy`, and then moves beat by beat: `beat` leaves for the ports in `dest`.

    A packet that ends early is passed on as it is. Of one that ends late one beat too many is passed on, marked last,
    and the rest is dropped: so whoever counts still sees the damage. `abort` marks such a last beat, and `damaged`
    pulses once for each such packet. What was reserved, header + `beats` + 1, is never exceeded.
    """

    def __init__(self, *, slack: int, max_beats: int) -> None:
        assert slack > 1, "expected room for two beats"
        assert slack & (slack - 1) == 0, "expected a power of two"
        self.slack, self.max_beats = slack, max_beats
        super().__init__(
            {
                "input": In(BeatStream),
                "header": Out(Meta),
                "asking": Out(1),
                "taken": In(1),
                "judged": In(1),
                "outs": In(NUM_PORTS),
                "beats": In(range(max_beats + 1)),
                "wanted": Out(NUM_PORTS),
                "waiting": Out(1),
                "grant": In(1),
                "reserved": Out(NUM_PORTS),
                "busy": In(NUM_PORTS),
                "starts": Out(NUM_PORTS),
                "ends": Out(NUM_PORTS),
                "beat": Out(Beat),
                "abort": Out(1),
                "dest": Out(NUM_PORTS),
                "damaged": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Buffer, check and transfer."""
        m = Module()
        head, filled, pop = Signal(Beat), Signal(), Signal()
        held = self._buffer(m, head, filled, pop)
        start, moving, beats = Signal(), Signal(), Signal.like(self.beats)
        is_free = ~moving & ~(self.wanted & self.busy).any()
        self._check(m, held, is_free, start, beats)
        self._transfer(m, head, filled, pop, start, beats, moving)
        return m

    def _buffer(self, m: Module, head: Signal, filled: Signal, pop: Signal) -> Signal:
        """A queue in LUT RAM; a header is also held apart, and the next one has to wait until it is taken."""
        m.submodules.ram = ram = Memory(shape=Beat, depth=self.slack, init=[])
        write, read = ram.write_port(), ram.read_port(domain="comb")
        put, taken = Signal(range(2 * self.slack)), Signal(range(2 * self.slack))
        at_header, held, enters = Signal(init=1), Signal(), Signal()
        m.d.comb += [
            self.input.ready.eq(((put ^ taken) != self.slack) & ~(at_header & held)),
            enters.eq(self.input.valid & self.input.ready),
            write.en.eq(enters),
            write.addr.eq(put),
            write.data.eq(self.input.payload),
            read.addr.eq(taken),
            head.eq(read.data),
            filled.eq(put != taken),
        ]
        m.d.sync += [put.eq(put + enters), taken.eq(taken + pop)]
        with m.If(self.taken):
            m.d.sync += held.eq(0)
        with m.If(enters):
            m.d.sync += at_header.eq(self.input.payload.last)
            with m.If(at_header):
                m.d.sync += [held.eq(1), self.header.eq(self.input.payload.data)]
        return held

    def _check(self, m: Module, held: Signal, is_free: Value, start: Signal, beats: Signal) -> None:
        """One verdict at a time: the next header asks when the packet before it has started."""
        asked, known, granted = Signal(), Signal(), Signal()
        m.d.comb += [
            self.asking.eq(held & ~asked & ~known),
            self.waiting.eq(known & ~granted & self.wanted.any()),
            self.reserved.eq(Mux(granted, self.wanted, 0)),
            start.eq(known & (granted | ~self.wanted.any()) & is_free),
            self.starts.eq(Mux(start, self.wanted, 0)),
        ]
        with m.If(self.taken):
            m.d.sync += asked.eq(1)
        with m.If(self.judged):
            m.d.sync += [asked.eq(0), known.eq(1), self.wanted.eq(self.outs), beats.eq(self.beats)]
        with m.If(self.grant):
            m.d.sync += granted.eq(1)
        with m.If(start):
            m.d.sync += [known.eq(0), granted.eq(0)]

    def _transfer(
        self, m: Module, head: Signal, filled: Signal, pop: Signal, start: Signal, beats: Signal, moving: Signal
    ) -> None:
        """`left`: payload beats expected after this one. `late`: this one is too many."""
        dest, left, late = Signal(NUM_PORTS), Signal.like(beats), Signal()
        dest_now, left_now, late_now = Mux(start, self.wanted, dest), Mux(start, beats, left), ~start & late
        last, good = Signal(), Signal()
        m.d.comb += [
            pop.eq(start | (moving & filled)),
            last.eq(head.last | late_now),
            good.eq(head.last & ~late_now & (left_now == 0)),
            self.ends.eq(Mux(pop & last, dest_now, 0)),
        ]
        m.d.sync += [
            self.dest.eq(Mux(pop, dest_now, 0)),
            self.beat.data.eq(head.data),
            self.beat.last.eq(last),
            self.abort.eq(~good),
            self.damaged.eq(pop & last & ~good & dest_now.any()),
        ]
        with m.If(pop):
            m.d.sync += [
                moving.eq(~head.last),
                left.eq(left_now - 1),
                late.eq((left_now == 0) | late_now),
                dest.eq(Mux(last, 0, dest_now)),
            ]
