"""Property (8): addresses stay until they are taken, no burst crosses 4 KB, no more are under way than the limit.

Beside it: nothing is asked for that has no room, or sent that is not there. By induction, so what is claimed of
registers is said exactly.
"""

from typing import Any

from amaranth.hdl import Const, Module, Mux, Signal, Value

from mcf.rtl.formal.bench import Bench, always, place, stable
from mcf.rtl.hdl.axi import BURST_BEATS, PAGE_BYTES, Bursts
from mcf.rtl.hdl.beat import BEAT_BYTES
from mcf.rtl.hdl.dma_read import DmaPingPong
from mcf.rtl.hdl.dma_write import DmaWrite

DEPTH, LIMIT = 32, 2
_COUNT = range(2 * DEPTH)


class ReadBench(Bench):
    """A reader before a memory that answers each burst in full, when it likes."""

    def __init__(self, design: type[DmaPingPong] = DmaPingPong) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """The memory knows the lengths of the two bursts that it has taken at most."""
        dut = place(m, "dut", self.design(depth=DEPTH, outstanding=LIMIT))
        _request(self, m, dut)
        m.d.comb += dut.data.ready.eq(self.free("ready"))
        _addresses(m, dut, "ar", dut.cutter)
        taken, owed, later = self._memory(m, dut.axi)
        waits = dut.axi.arvalid
        always(m, dut.under_way == taken + waits)
        always(m, dut.under_way <= LIMIT)
        stored = dut.pages.level + dut.data.valid
        always(m, dut.promised == stored + owed + Mux(taken == LIMIT, later, 0) + Mux(waits, dut.axi.arlen + 1, 0))
        always(m, dut.promised <= DEPTH)
        stable(m, dut.data)

    def _memory(self, m: Module, axi: Any) -> tuple[Signal, Signal, Signal]:
        """Bursts taken; beats left of the first, and of the second."""
        taken, owed, later = Signal(range(LIMIT + 2)), Signal(range(BURST_BEATS + 1)), Signal(range(BURST_BEATS + 1))
        comes, gives, ends = Signal(), self.free("gives"), Signal()
        m.d.comb += [
            axi.arready.eq(self.free("arready")),
            comes.eq(axi.arvalid & axi.arready),
            axi.rvalid.eq(gives & (taken != 0)),
            axi.rlast.eq(owed == 1),
            axi.rresp[1].eq(self.free("bad")),
            ends.eq(axi.rvalid & axi.rlast),
        ]
        m.d.sync += taken.eq(taken + comes - ends)
        fresh = comes & (taken == ends)
        m.d.sync += owed.eq(Mux(fresh, axi.arlen + 1, Mux(ends, Mux(taken == 1, 0, later), owed - axi.rvalid)))
        with m.If(comes & ~fresh):
            m.d.sync += later.eq(axi.arlen + 1)
        always(m, (taken != 0) == (owed != 0))
        always(m, (owed <= BURST_BEATS) & (later <= BURST_BEATS) & ((taken != LIMIT) | (later != 0)))
        return taken, owed, later


class WriteBench(Bench):
    """A writer before a memory that takes addresses and beats and answers bursts when it likes.

    By induction without `answers`: a solver may begin with any marks in the queue of bursts that wait for theirs.
    """

    def __init__(self, design: type[DmaWrite] = DmaWrite, *, answers: bool = True) -> None:
        super().__init__()
        self.design, self.answers = design, answers

    def build(self, m: Module) -> None:
        """A burst counts from the cycle in which its address is first offered."""
        dut = place(m, "dut", self.design(depth=DEPTH, outstanding=LIMIT))
        axi = dut.axi
        _request(self, m, dut)
        m.d.comb += [
            dut.data.valid.eq(self.free("data")),
            axi.awready.eq(self.free("awready")),
            axi.wready.eq(self.free("wready")),
            axi.bresp[1].eq(self.free("bad")),
        ]
        waited = _addresses(m, dut, "aw", dut.cutter)
        fresh, moves, ends = Signal(), Signal(), Signal()
        m.d.comb += [
            fresh.eq(axi.awvalid & ~waited),
            moves.eq(axi.wvalid & axi.wready),
            ends.eq(moves & axi.wlast),
        ]
        owed = self._beats(m, dut, fresh, moves, ends)
        stored = dut.beats.level + dut.beats.output.valid
        always(m, stored == dut.there + owed + Mux(fresh, axi.awlen + 1, 0))
        always(m, dut.beats.level <= DEPTH)
        if self.answers:
            self._answers(m, dut, fresh, ends)

    def _beats(self, m: Module, dut: DmaWrite, fresh: Signal, moves: Signal, ends: Signal) -> Value:
        """Beats leave as the addresses said: what is left of the first burst, and the second."""
        axi, length = dut.axi, Signal(range(BURST_BEATS + 1))
        num, first, second = Signal(2), Signal.like(length), Signal.like(length)
        m.d.comb += length.eq(axi.awlen + 1)
        m.d.sync += num.eq(num + fresh - ends)
        becomes_first = fresh & (num == ends)
        m.d.sync += first.eq(Mux(becomes_first, length, Mux(ends, Mux(num == 1, 0, second), first - moves)))
        with m.If(fresh & ~becomes_first):
            m.d.sync += second.eq(length)
        always(m, ~axi.wvalid | ((num != 0) & (axi.wlast == (first == 1))))
        always(m, num + fresh == (dut.left != 0) + dut.is_next)
        always(m, first == dut.left)
        always(m, ~dut.is_next | Mux(fresh, dut.next == length, (num == 2) & (second == dut.next)))
        always(m, ~fresh | dut.is_next)
        always(m, (first <= BURST_BEATS) & (second <= BURST_BEATS) & ((num != 2) | (second != 0)) & (num != 3))
        before, held = Signal(), Signal()
        m.d.sync += [held.eq(axi.wvalid & ~axi.wready), before.eq(axi.wlast)]
        always(m, ~held | (axi.wvalid & (axi.wlast == before)))
        return first + Mux(num == 2, second, 0)

    def _answers(self, m: Module, dut: DmaWrite, fresh: Signal, ends: Signal) -> None:
        """An answer comes when address and beats were taken; a request is done when all of its bursts are answered."""
        axi = dut.axi
        under_way, complete, taken = Signal(_COUNT), Signal(_COUNT), Signal(_COUNT)
        requests = Signal(_COUNT)
        answered, accepted = Signal(), Signal()
        m.d.comb += [
            axi.bvalid.eq(self.free("answers") & (complete != 0) & (taken != 0)),
            answered.eq(axi.bvalid & axi.bready),
            accepted.eq(dut.requests.valid & dut.requests.ready),
        ]
        m.d.sync += [
            under_way.eq(under_way + fresh - answered),
            complete.eq(complete + ends - answered),
            taken.eq(taken + (axi.awvalid & axi.awready) - answered),
            requests.eq(requests + accepted - dut.done.valid),
        ]
        always(m, under_way + fresh <= LIMIT)
        always(m, ~axi.bvalid | axi.bready)
        idle = dut.requests.ready & ~dut.cutter.bursts.valid & ~dut.answers.r_rdy & ~dut.done.valid
        always(m, idle == (requests == 0))


def _request(bench: Bench, m: Module, dut: Any) -> None:
    """Any request in any cycle."""
    m.d.comb += [
        dut.requests.valid.eq(bench.free("valid")),
        dut.requests.payload.address.eq(bench.free("address", 16)),
        dut.requests.payload.beats.eq(bench.free("beats", 8)),
    ]


def _addresses(m: Module, dut: Any, channel: str, cutter: Bursts) -> Signal:
    """What is claimed of an address channel, and of the burst that will be next; whether the address waited."""
    valid, address, length = (getattr(dut.axi, channel + name) for name in ("valid", "addr", "len"))
    before = Signal(len(address) + len(length))
    waited, now = Signal(), Value.cast(address) | Value.cast(length) << len(address)
    m.d.sync += [waited.eq(valid & ~getattr(dut.axi, channel + "ready")), before.eq(now)]
    always(m, ~waited | (valid & (now == before)))
    always(m, ~valid | _fits(address, length + 1))
    burst = cutter.bursts.payload
    always(m, ~cutter.bursts.valid | (burst.beats == 0) | _fits(burst.address, burst.beats))
    return waited


def _fits(address: Value, beats: Value) -> Value:
    """Bursts that do not cross 4 KB, of 1 to 16 beats."""
    in_page = address[: (PAGE_BYTES - 1).bit_length()]
    return (in_page + beats * BEAT_BYTES <= PAGE_BYTES) & (beats <= BURST_BEATS) & (beats != 0)


class Crossing(Bursts):
    """A fault: bursts are as long as they may be, wherever they begin."""

    def _room(self, address: Signal) -> Value:
        return Const(BURST_BEATS)


class CrossingRead(DmaPingPong):
    """A mutant: its bursts cross 4 KB."""

    cuts = Crossing


class Restless(DmaPingPong):
    """A mutant: the next address takes the place of one that waits."""

    def _is_free(self) -> Value:
        return Const(1)


class Unlimited(DmaPingPong):
    """A mutant: any number of bursts is under way."""

    def _is_below_limit(self) -> Value:
        return Const(1)


class RoomlessRead(DmaPingPong):
    """A mutant: asks without room."""

    def _has_room(self) -> Value:
        return Const(1)


class CrossingWrite(DmaWrite):
    """A mutant: its bursts cross 4 KB."""

    cuts = Crossing


class RestlessWrite(DmaWrite):
    """A mutant: the next address takes the place of one that waits."""

    def _is_free(self) -> Value:
        return ~self.is_next


class Early(DmaWrite):
    """A mutant: asks before the beats are there."""

    def _has_beats(self) -> Value:
        return Const(1)


class UnlimitedWrite(DmaWrite):
    """A mutant: any number of bursts waits for answers."""

    def _is_below_limit(self) -> Value:
        return Const(1)


class Talkative(DmaWrite):
    """A mutant: a request is done with each of its bursts."""

    def _collect(self, m: Module) -> None:
        super()._collect(m)
        m.d.sync += self.done.valid.eq(self.answers.r_en)
