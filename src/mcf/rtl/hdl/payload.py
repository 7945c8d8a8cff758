"""What packets carry: beats that are read from memory, or the record of a state that the compute half has finished."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.descriptor import STATE_BIT
from mcf.rtl.hdl.axi import RequestStream
from mcf.rtl.hdl.beat import BEAT_BITS, BeatStream
from mcf.rtl.hdl.queue import Queue

DEPTH = 8  # fetches under way


class Payload(Component):
    """Answers `fetch` in order by runs of beats on `payload`, the last one marked.

    An address with STATE_BIT takes the next record of `states`, whose length must be what the fetch asks for; any other
    one is read from memory: `requests`, answered by `data`. Where a beat is `bad` the run becomes shorter than it was
    asked for, or longer by a beat, so that whoever makes a packet of it drops it.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "fetch": In(stream.Signature(data.StructLayout({"address": 40, "beats": 16}))),
                "states": In(BeatStream),
                "requests": Out(RequestStream),
                "data": In(stream.Signature(BEAT_BITS)),
                "bad": In(1),
                "payload": Out(BeatStream),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """A queue says where each run comes from and how long it is."""
        m = Module()
        layout = data.StructLayout({"is_state": 1, "is_one": 1, "beats": 16})
        m.submodules.queue = queue = Queue(layout, depth=DEPTH)
        fetch, run = self.fetch, queue.output
        is_state = fetch.p.address[STATE_BIT]
        can_go = queue.input.ready & (is_state | self.requests.ready)
        m.d.comb += [
            *(self.requests.p.address.eq(fetch.p.address), self.requests.p.beats.eq(fetch.p.beats)),
            *(queue.input.p.is_state.eq(is_state), queue.input.p.beats.eq(fetch.p.beats)),
            queue.input.p.is_one.eq(fetch.p.beats == 1),
            self.requests.valid.eq(fetch.valid & ~is_state & queue.input.ready),
            *(queue.input.valid.eq(fetch.valid & can_go), fetch.ready.eq(can_go)),
        ]
        with m.If(run.p.is_state):
            m.d.comb += [
                *(self.payload.p.eq(self.states.p), self.payload.valid.eq(run.valid & self.states.valid)),
                self.states.ready.eq(run.valid & self.payload.ready),
                run.ready.eq(self.payload.valid & self.payload.ready & self.states.p.last),
            ]
        with m.Else():
            self._memory(m, run)
        return m

    def _memory(self, m: Module, run: stream.Interface) -> None:
        is_last, is_over, is_longer = Signal(), Signal(), Signal()
        beats, out = self.data, self.payload
        m.d.comb += [
            *(out.p.data.eq(beats.payload), out.p.last.eq((is_last ^ self.bad) | is_longer)),
            out.valid.eq(run.valid & (is_longer | (beats.valid & ~is_over))),
            beats.ready.eq(run.valid & ~is_longer & (is_over | out.ready)),
        ]
        taken = Signal()
        m.d.comb += taken.eq(beats.valid & beats.ready)
        ends = (taken & is_last & (is_over | ~self.bad)) | (is_longer & out.ready)
        m.d.comb += run.ready.eq(ends)
        self._count_down(m, run, taken, is_last)
        with m.If(taken):
            m.d.sync += [is_over.eq(is_over | self.bad), is_longer.eq(is_last & self.bad & ~is_over)]
        with m.If(ends):
            m.d.sync += [is_over.eq(0), is_longer.eq(0)]

    def _count_down(self, m: Module, run: stream.Interface, taken: Value, is_last: Signal) -> None:
        """Find out a beat ahead which one is the last of its run, so that packets wait for no comparison."""
        left, is_first, is_next = Signal(16), Signal(init=1), Signal()
        before = Mux(is_first, run.p.beats, left)
        m.d.comb += is_last.eq(Mux(is_first, run.p.is_one, is_next))
        with m.If(taken):
            m.d.sync += [left.eq(before - 1), is_next.eq(before == 2), is_first.eq(is_last)]
