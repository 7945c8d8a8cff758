"""Events: numbers by which DMA, compute and the network wait for each other without software.

An event counts: each set adds one that is pending, each wait takes one. Golden model: `mcf.rtl.golden.events`.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from mcf.rtl.descriptor import NO_EVENT
from mcf.rtl.golden.events import MOST_PENDING

EVENT_BITS = 8
NUM_SOURCES = 5

_Operation = data.StructLayout({"valid": 1, "is_wait": 1, "is_other": 1, "number": EVENT_BITS})


class Events(wiring.Component):
    """Takes sets from several sources and grants waits: one operation per cycle, from each source every other cycle.

    `waits` (the ring's) and `other_waits` (the compute half's) are ready in the cycle in which their event is taken; a
    wait looks once, and again when its event is set. The first source goes first. `lost` pulses for a set of an event
    that has MOST_PENDING already. A pulse on `clear` forgets all: `clearing` is 1 meanwhile, for 256 cycles, and
    nothing is taken.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "sets": In(stream.Signature(EVENT_BITS)).array(NUM_SOURCES),
                "waits": In(stream.Signature(EVENT_BITS)),
                "other_waits": In(stream.Signature(EVENT_BITS)),
                "clear": In(1),
                "clearing": Out(1),
                "lost": Out(1),
            }
        )
        self.operation = Signal(_Operation)

    def elaborate(self, platform: object) -> Module:
        """An operation is chosen in one cycle, and carried out on the table of counts in the next."""
        m = Module()
        self._choose(m, self.operation)
        self._carry_out(m, self.operation)
        return m

    def _choose(self, m: Module, operation: data.View) -> None:
        """A wait goes first: it looks when it comes, and again when its event is set. Then the kept sets, in order."""
        waits, looks, asks = (self.waits, self.other_waits), Signal(2, init=3), Signal(2)
        may_look, may_choose = Signal(), Signal()
        is_waiting = operation.valid & operation.is_wait
        numbers = [Signal(EVENT_BITS, name=f"kept_{i}") for i in range(NUM_SOURCES)]
        kept = [Signal(name=f"is_kept_{i}") for i in range(NUM_SOURCES)]
        m.d.comb += [port.ready.eq(~is_kept & ~self.clearing) for port, is_kept in zip(self.sets, kept, strict=True)]
        m.d.comb += [may_choose.eq(~self.clear & ~self.clearing), may_look.eq(asks.any() & ~is_waiting)]
        m.d.comb += asks.eq(looks & Cat(port.valid for port in waits))
        m.d.sync += operation.valid.eq(may_choose & (may_look | Cat(kept).any()))
        m.d.sync += [operation.is_wait.eq(may_look), operation.is_other.eq(~asks[0])]
        m.d.sync += operation.number.eq(Mux(asks[0], self.waits.payload, self.other_waits.payload))
        with m.If(may_choose & may_look):
            m.d.sync += looks.eq(Mux(asks[0], looks & 0b10, looks & 0b01))
        for i in range(NUM_SOURCES):
            with m.If(may_choose & ~may_look & kept[i] & ~Cat(kept[:i]).any()):
                m.d.sync += [operation.number.eq(numbers[i]), kept[i].eq(0)]
            with m.If(self.sets[i].valid & self.sets[i].ready):
                m.d.sync += [numbers[i].eq(self.sets[i].payload), kept[i].eq(1)]
            with m.If(self.clear):
                m.d.sync += kept[i].eq(0)
        for i, port in enumerate(waits):
            is_set = operation.valid & ~operation.is_wait & (operation.number == port.payload)
            with m.If(port.ready | is_set | self.clear):
                m.d.sync += looks[i].eq(1)

    def _carry_out(self, m: Module, operation: data.View) -> None:
        depth = 1 << EVENT_BITS
        m.submodules.pending = pending = Memory(
            MemoryData(shape=range(MOST_PENDING + 1), depth=depth, init=[]), attrs={"ram_style": "distributed"}
        )
        read, write = pending.read_port(domain="comb"), pending.write_port()
        at, granted = Signal(EVENT_BITS), Signal()  # `at`: while clearing
        is_all, is_counted = read.data == MOST_PENDING, operation.number != NO_EVENT
        m.d.comb += [
            *(read.addr.eq(operation.number), write.addr.eq(Mux(self.clearing, at, operation.number))),
            granted.eq(operation.valid & operation.is_wait & ((read.data != 0) | ~is_counted)),
            *(
                self.waits.ready.eq(granted & ~operation.is_other),
                self.other_waits.ready.eq(granted & operation.is_other),
            ),
            self.lost.eq(operation.valid & ~operation.is_wait & is_all & is_counted),
            write.data.eq(Mux(operation.is_wait, read.data - 1, read.data + 1)),
            write.en.eq(operation.valid & is_counted & Mux(operation.is_wait, read.data != 0, ~is_all)),
        ]
        with m.If(self.clearing):
            m.d.comb += [write.data.eq(0), write.en.eq(1)]
            m.d.sync += [at.eq(at + 1), self.clearing.eq(at != depth - 1)]
        with m.If(self.clear):
            m.d.sync += [self.clearing.eq(1), at.eq(0)]
