"""Events: numbers by which DMA, compute and the network wait for each other without software.

An event counts: each set adds one that is pending, each wait takes one. Golden model: `mcf.rtl.golden.events`.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from mcf.rtl.descriptor import NO_EVENT
from mcf.rtl.golden.events import MOST_PENDING

EVENT_BITS = 8
NUM_SOURCES = 5


class Events(wiring.Component):
    """Takes sets from several sources and grants waits; one operation every 4 cycles, in turns.

    `waits` is ready in the cycle in which its event is taken. `lost` pulses for a set of an event that has
    MOST_PENDING already. A pulse on `clear` forgets all: `clearing` is 1 meanwhile, for 256 cycles, and nothing is
    taken.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "sets": In(stream.Signature(EVENT_BITS)).array(NUM_SOURCES),
                "waits": In(stream.Signature(EVENT_BITS)),
                "clear": In(1),
                "clearing": Out(1),
                "lost": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """One table of counts; an operation is chosen, then carried out."""
        m = Module()
        depth = 1 << EVENT_BITS
        m.submodules.pending = pending = Memory(
            MemoryData(shape=range(MOST_PENDING + 1), depth=depth, init=[]), attrs={"ram_style": "distributed"}
        )
        read, write = pending.read_port(domain="comb"), pending.write_port()
        number = Signal(EVENT_BITS)
        is_wait = Signal()
        is_all = Signal()  # a source has MOST_PENDING already
        m.d.comb += [read.addr.eq(number), write.addr.eq(number), is_all.eq(read.data == MOST_PENDING)]
        with m.FSM():
            self._choose(m, number, is_wait)
            with m.State("CARRY OUT"):
                can_take = (read.data != 0) | (number == NO_EVENT)
                is_counted = number != NO_EVENT
                m.d.comb += [
                    self.waits.ready.eq(is_wait & can_take),
                    self.lost.eq(~is_wait & is_all & is_counted),
                    write.data.eq(Mux(is_wait, read.data - 1, read.data + 1)),
                    write.en.eq(is_counted & Mux(is_wait, read.data != 0, ~is_all)),
                ]
                m.next = "LOOK"
                self._may_clear(m, number)
            with m.State("CLEAR"):
                m.d.comb += [self.clearing.eq(1), write.en.eq(1), write.data.eq(0)]
                m.d.sync += number.eq(number + 1)
                with m.If(number == depth - 1):
                    m.next = "LOOK"
        return m

    def _choose(self, m: Module, number: Signal, is_wait: Signal) -> None:
        """Look who asks, pick whoever comes next in turn, take what it says: three short steps."""
        numbers = Array([*(port.payload for port in self.sets), self.waits.payload])
        asking = Signal(NUM_SOURCES + 1)  # in the cycle before: whoever asks goes on asking until it is served
        chosen = Signal(range(NUM_SOURCES + 1))
        m.d.sync += asking.eq(Cat(*(port.valid for port in self.sets), self.waits.valid))
        with m.State("LOOK"):
            m.next = "PICK"
            self._may_clear(m, number)
        with m.State("PICK"):
            m.next = "LOOK"
            with m.If(asking.any()):
                m.d.sync += chosen.eq(_next(asking, chosen))
                m.next = "TAKE"
            self._may_clear(m, number)
        with m.State("TAKE"):
            for source, port in enumerate(self.sets):
                m.d.comb += port.ready.eq((chosen == source) & ~self.clear)
            m.d.sync += [number.eq(numbers[chosen]), is_wait.eq(chosen == NUM_SOURCES)]
            m.next = "CARRY OUT"
            self._may_clear(m, number)

    def _may_clear(self, m: Module, number: Signal) -> None:
        """Leave for the clearing, from any state."""
        with m.If(self.clear):
            m.d.sync += number.eq(0)
            m.next = "CLEAR"


def _next(asking: Value, last: Signal) -> Value:
    """The first that asks behind `last`, round and round."""
    choice: Value = last
    for behind in range(NUM_SOURCES + 1):
        turn: Value = last
        for step in range(NUM_SOURCES, 0, -1):
            turn = Mux(asking[(behind + step) % (NUM_SOURCES + 1)], (behind + step) % (NUM_SOURCES + 1), turn)
        choice = Mux(last == behind, turn, choice)
    return choice
