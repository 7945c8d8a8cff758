"""Property (5): a grant gives a packet all outputs of its route, each with room and kept by nobody else."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from mcf.rtl.entry import NUM_PORTS
from mcf.rtl.formal.bench import Bench, always, given, place
from mcf.rtl.hdl.allocator import Allocator

AGE = 2  # cycles from the look at the outputs to the grant


class AllocatorBench(Bench):
    """Packets that wait as long as they are not granted, before outputs that do as they like."""

    def __init__(self, design: type[Allocator] = Allocator) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """What a grant saw is remembered beside it."""
        dut = place(m, "dut", self.design())
        waiting, room, reserved = (self.free(name, NUM_PORTS) for name in ("waiting", "room", "reserved"))
        wanted = [self.free(f"wanted_{i}", NUM_PORTS) for i in range(NUM_PORTS)]
        m.d.comb += [dut.waiting.eq(waiting), dut.room.eq(room), dut.reserved.eq(reserved)]
        good = Signal(NUM_PORTS)
        for i in range(NUM_PORTS):
            m.d.comb += dut.wanted[i].eq(wanted[i])
            m.d.comb += good[i].eq(waiting[i] & ((wanted[i] & ~(room & ~reserved)) == 0))
        seen: Value = good
        for _ in range(AGE):
            later = Signal(NUM_PORTS)
            m.d.sync += later.eq(seen)
            seen = later
        always(m, dut.grant & ~seen == 0)
        always(m, dut.grant & (dut.grant - 1) == 0)
        self._apart(m, dut.grant)
        self._patience(m, waiting, wanted, dut.grant)

    def _apart(self, m: Module, grant: Signal) -> None:
        """No grant within two cycles of another: the reservations of one are seen by the next."""
        before, earlier = Signal(), Signal()
        m.d.sync += [before.eq(grant.any()), earlier.eq(before)]
        always(m, ~(grant.any() & (before | earlier)))

    def _patience(self, m: Module, waiting: Signal, wanted: list[Signal], grant: Signal) -> None:
        """A waiting packet wants the same until it is granted."""
        held, same = Signal(NUM_PORTS), Cat(*wanted)
        before = Signal.like(same)
        m.d.sync += [held.eq(waiting & ~grant), before.eq(same)]
        given(m, held & ~waiting == 0)
        for i in range(NUM_PORTS):
            given(m, Mux(held[i], wanted[i] == before.word_select(i, NUM_PORTS), 1))


class Roomless(Allocator):
    """A mutant: free space is not looked at."""

    def _fits(self, m: Module, turn: Signal) -> tuple[Value, Value]:
        fits, stays = super()._fits(m, turn)
        return self.waiting & ~Cat((wanted & self.reserved).any() for wanted in self.wanted), stays & fits.any()


class PartOf(Allocator):
    """A mutant: one free output of the route is enough."""

    def _fits(self, m: Module, turn: Signal) -> tuple[Value, Value]:
        _, stays = super()._fits(m, turn)
        return self.waiting & Cat((wanted & self.room & ~self.reserved).any() for wanted in self.wanted), stays
