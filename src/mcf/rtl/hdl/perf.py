"""Counters: how often each thing of `mcf.rtl.registers.COUNTERS` happened, in one small memory.

What happens is first counted in a few bits beside each input; a walk adds these to the memory, one counter per cycle.
So a read may lag by one round of the walk. The walk rests when there is nothing to add.
"""

from amaranth.hdl import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from mcf.rtl.registers import COUNTER_BITS, COUNTERS

NUM_COUNTERS = len(COUNTERS)
Amounts = data.StructLayout({counter.name: counter.width for counter in COUNTERS})


class Perf(wiring.Component):
    """Adds up `amounts`, each cycle. A pulse on `clear` sets all to 0; `clearing` is 1 meanwhile, a round of the walk.

    `read` takes the index of a word: 2 * counter is its low 32 bits, and keeps its high ones of the same moment for
    2 * counter + 1; `data` has it a cycle later.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "amounts": In(Amounts),
                "clear": In(1),
                "clearing": Out(1),
                "read": In(stream.Signature(range(2 * NUM_COUNTERS), always_ready=True)),
                "data": Out(32),
            }
        )
        depth = 1 << (NUM_COUNTERS - 1).bit_length()  # every address that a read may have is there
        self.totals = MemoryData(shape=COUNTER_BITS, depth=depth, init=[])

    def elaborate(self, platform: object) -> Module:
        """The walk, the small counts and the memory."""
        m = Module()
        m.submodules.totals = totals = Memory(self.totals, attrs={"ram_style": "distributed"})
        old, total = totals.read_port(domain="comb"), totals.write_port()
        at, where = Signal(range(NUM_COUNTERS)), Signal(range(NUM_COUNTERS))
        is_busy, walks, adds = Signal(), Signal(), Signal()
        recent = [Signal(_bits(counter.width), name=f"recent_{counter.name}") for counter in COUNTERS]
        amount = Signal(max(map(len, recent)))
        m.d.comb += walks.eq(is_busy | self.clearing)
        m.d.sync += [is_busy.eq(Cat(recent).any()), adds.eq(walks), where.eq(at), amount.eq(Array(recent)[at])]
        m.d.comb += [old.addr.eq(where), total.addr.eq(where), total.en.eq(adds)]
        m.d.comb += total.data.eq(Mux(self.clearing, 0, old.data + amount))
        with m.If(walks):
            m.d.sync += at.eq(Mux(at == NUM_COUNTERS - 1, 0, at + 1))
        for index, (counter, count) in enumerate(zip(COUNTERS, recent, strict=True)):
            kept = Mux(walks & (at == index), 0, count)
            m.d.sync += count.eq(kept + self.amounts[counter.name])
        self._clear(m)
        self._answer(m, totals)
        return m

    def _clear(self, m: Module) -> None:
        left = Signal(range(NUM_COUNTERS + 2))
        m.d.sync += self.clearing.eq(self.clear | (left != 0))
        with m.If(self.clear):
            m.d.sync += left.eq(NUM_COUNTERS + 1)  # a round of the walk, which writes a cycle later
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)

    def _answer(self, m: Module, totals: Memory) -> None:
        port = totals.read_port(domain="comb")
        high = Signal(COUNTER_BITS - 32)
        m.d.comb += port.addr.eq(self.read.payload >> 1)
        with m.If(self.read.valid):
            m.d.sync += self.data.eq(Mux(self.read.payload[0], high, port.data[:32]))
            with m.If(~self.read.payload[0]):
                m.d.sync += high.eq(port.data[32:])


def _bits(width: int) -> int:
    """Bits in which nothing is lost between two visits of the walk."""
    return ((NUM_COUNTERS + 1) * ((1 << width) - 1)).bit_length()
