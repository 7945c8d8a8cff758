"""The barrier: counts the peers' BARRIER packets and sets an event when all are there. Golden: `golden.events`.

A fast peer may arrive at the next barrier before a slow one has arrived at this one, but never at the one after: so
two counts are enough, told apart by the lowest bit of the epoch in `tag`.
"""

from amaranth.hdl import Array, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

TAG_BITS = 8
PEER_BITS = 10


class Barrier(wiring.Component):
    """One arrival per cycle, unless a completed epoch still waits for its event to be taken. `peers` 0 is as 1."""

    def __init__(self) -> None:
        super().__init__(
            {
                "arrivals": In(stream.Signature(TAG_BITS)),
                "peers": In(PEER_BITS),
                "event": In(8),
                "sets": Out(stream.Signature(8)),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Two counts and the event that waits."""
        m = Module()
        counts = Array(Signal(PEER_BITS, name=f"arrived_{i}") for i in range(2))
        is_due = Signal()
        count = counts[self.arrivals.payload[0]]
        m.d.comb += [self.arrivals.ready.eq(~is_due), self.sets.valid.eq(is_due), self.sets.payload.eq(self.event)]
        with m.If(is_due):
            m.d.sync += is_due.eq(~self.sets.ready)
        with m.Elif(self.arrivals.valid):
            m.d.sync += count.eq(count + 1)
            with m.If(count + 1 >= self.peers):
                m.d.sync += [count.eq(0), is_due.eq(1)]
        with m.If(self.clear):
            m.d.sync += [*(kept.eq(0) for kept in counts), is_due.eq(0)]
        return m
