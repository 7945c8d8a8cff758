"""The router's allocator: gives a waiting packet all its outputs at once, at most one packet in three cycles."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.entry import NUM_PORTS, Port


class Allocator(wiring.Component):
    """`wanted[i]` are the outputs of the packet at input i, `waiting` the inputs whose packet has no grant yet.

    An output can be given where it has `room` and is not `reserved` by a packet that has not started. Three phases, a
    cycle each: who fits, who wins, the grant. The input whose turn it is goes first, and while nothing but
    reservations stands in its way the others must leave its outputs alone: so a multicast is not starved by unicasts.
    Where one of its outputs has no room it does not hold up others, so no packet ever waits for an output not its own.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "wanted": In(NUM_PORTS).array(NUM_PORTS),
                "waiting": In(NUM_PORTS),
                "room": In(NUM_PORTS),
                "reserved": In(NUM_PORTS),
                "grant": Out(NUM_PORTS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """`fits` is one cycle old where the winner is chosen; grants in between are waited out."""
        m = Module()
        turn = Signal(NUM_PORTS, init=1)
        fits, stays, winner, settling = Signal(NUM_PORTS), Signal(), Signal(NUM_PORTS), Signal()
        m.d.sync += Cat(fits, stays).eq(Cat(*self._fits(m, turn)))
        choosing = ~winner.any() & ~settling
        first, chosen = fits & turn, Signal(NUM_PORTS)
        m.d.comb += chosen.eq(first)
        with m.If(~first.any()):
            m.d.comb += chosen.eq(fits & (~fits + 1))
        m.d.sync += [winner.eq(0), settling.eq(winner.any())]
        with m.If(choosing):
            m.d.sync += winner.eq(chosen)
            with m.If(chosen.any() & (~stays | first.any())):
                m.d.sync += turn.eq(turn.rotate_left(1))
        m.d.comb += self.grant.eq(winner)
        return m

    def _fits(self, m: Module, turn: Signal) -> tuple[Value, Value]:
        has_room, is_free, fits = Signal(NUM_PORTS), Signal(NUM_PORTS), Signal(NUM_PORTS)
        kept, turn_wants = Signal(NUM_PORTS), Signal(NUM_PORTS)
        for port in Port:
            with m.If(turn[port]):
                m.d.comb += turn_wants.eq(self.wanted[port])
            m.d.comb += has_room[port].eq(~(self.wanted[port] & ~self.room).any())
            m.d.comb += is_free[port].eq(~(self.wanted[port] & self.reserved).any())
        stays = (turn & self.waiting & has_room).any()
        m.d.sync += kept.eq(Mux(stays, turn_wants, 0))  # a cycle late, which only delays a turn
        for port in Port:
            mine = turn[port] | ~(self.wanted[port] & kept).any()
            m.d.comb += fits[port].eq(self.waiting[port] & has_room[port] & is_free[port] & mine)
        return fits, stays
