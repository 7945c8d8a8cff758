"""Completions: what follows when a packet has left: an event is set, and software is told by a ring of its own."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from mcf.rtl.descriptor import NO_EVENT, NO_TAG
from mcf.rtl.registers import NUM_COMPLETIONS

Issue = data.StructLayout({"set": 8, "tag": 16})
Done = data.StructLayout({"tag": 16, "clock": 32})


class Completions(wiring.Component):
    """Keeps what each packet on its way out will set and report, in order, until it is `retired`.

    `issued` takes one entry per packet, before the packet can leave; `retired` pulses when the next one's last beat has
    left. `head` counts the completions written, `tail` (software's) those read; one that finds the ring full is lost
    and `lost` pulses. `read` takes the index of a word: 2 * entry is the tag, 2 * entry + 1 the clock; `data` has it a
    cycle later.
    """

    def __init__(self, size: int = NUM_COMPLETIONS, in_flight: int = 64) -> None:
        self.size, self.in_flight = size, in_flight
        pointer, index = (2 * size - 1).bit_length(), (2 * size - 1).bit_length()
        super().__init__(
            {
                "issued": In(stream.Signature(Issue)),
                "retired": In(1),
                "sets": Out(stream.Signature(8)),
                "clock": In(32),
                "tail": In(pointer),
                "head": Out(pointer),
                "waiting": Out(pointer),
                "lost": Out(1),
                "read": In(stream.Signature(index, always_ready=True)),
                "data": Out(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Packets that have left and are not dealt with yet are counted; one at a time is dealt with."""
        m = Module()
        m.submodules.issues = issues = SyncFIFOBuffered(width=Issue.size, depth=self.in_flight)
        m.submodules.ring = ring = Memory(MemoryData(shape=Done, depth=self.size, init=[]))
        issue = data.View(Issue, issues.r_data)
        left = Signal(range(self.in_flight + 1))
        write = ring.write_port()
        m.d.comb += [
            *(issues.w_data.eq(self.issued.payload), issues.w_en.eq(self.issued.valid)),
            *(
                self.issued.ready.eq(issues.w_rdy),
                self.sets.payload.eq(issue.set),
                self.waiting.eq(self.head - self.tail),
            ),
            *(write.addr.eq(self.head[:-1]), write.data.tag.eq(issue.tag), write.data.clock.eq(self.clock)),
        ]
        m.d.sync += left.eq(left + self.retired - issues.r_en)
        with m.FSM():
            with m.State("NEXT"):
                with m.If((left != 0) & issues.r_rdy):
                    m.next = "TELL"
                    with m.If(issue.set != NO_EVENT):
                        m.next = "SET"
            with m.State("SET"):
                m.d.comb += self.sets.valid.eq(1)
                with m.If(self.sets.ready):
                    m.next = "TELL"
            with m.State("TELL"):
                is_full = self.waiting == self.size
                m.d.comb += [issues.r_en.eq(1), write.en.eq((issue.tag != NO_TAG) & ~is_full)]
                m.d.comb += self.lost.eq((issue.tag != NO_TAG) & is_full)
                m.d.sync += self.head.eq(self.head + write.en)
                m.next = "NEXT"
        self._answer(m, ring)
        return m

    def _answer(self, m: Module, ring: Memory) -> None:
        port = ring.read_port()
        is_clock = Signal()
        m.d.sync += is_clock.eq(self.read.payload[0])
        m.d.comb += [port.addr.eq(self.read.payload[1:]), port.en.eq(self.read.valid)]
        m.d.comb += self.data.eq(Mux(is_clock, port.data.clock, Cat(port.data.tag)))
