"""Property (7): a slot's result leaves after all its children have come, and once; the input never waits."""

from typing import Any
from unittest.mock import patch

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from mcf.rtl.formal.bench import Bench, always, given, place
from mcf.rtl.hdl import reduce, reduce_emit
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.hdl.reduce import Reduce
from mcf.rtl.hdl.reduce_emit import ReduceEmit, Step
from mcf.rtl.hdl.reduce_front import ReduceFront
from mcf.rtl.hdl.reduce_lanes import ReduceLanes
from mcf.rtl.hdl.reduce_slot import StateBeat
from mcf.schedule.wire import ReduceOp

SLOTS, BEATS = 2, 4
CHILDREN_BITS = 2
QUEUE_BEATS = 4  # fewer than a result has: the emitter must wait for room
PATIENCE = 12  # cycles from a slot's completion to the start of its result, with the other slot's before it


class ReduceBench(Bench):
    """Any beats whose header, read as such, is of one of two slots and two epochs; slot 0 is watched.

    The numbers are left out: nothing that is claimed depends on them.
    """

    def __init__(
        self, front: type[ReduceFront] = ReduceFront, emit: type[ReduceEmit] = ReduceEmit, *, prompt: bool = False
    ) -> None:
        super().__init__()
        self.front, self.emit, self.prompt = front, emit, prompt

    def build(self, m: Module) -> None:
        """Free packets, free set-ups, a free reader; for `prompt` one that is always willing, and an end of packets."""
        parts: dict[str, Any] = {"ReduceFront": self.front, "ReduceEmit": self.emit, "ReduceLanes": NoNumbers}
        with patch.multiple(reduce, **parts), patch.object(reduce_emit, "QUEUE_BEATS", QUEUE_BEATS):
            dut = self.dut = place(m, "dut", Reduce(slots=SLOTS, beats=BEATS))
        header = Meta.const({"reduce_op": ReduceOp.MERGE, "len": BEATS + 1})
        fixed = header.as_bits()
        tag, child = self.free("tag", 2), self.free("child")
        low = Meta["tag"].offset
        data = Signal(128)
        m.d.comb += data.eq(fixed)
        m.d.comb += [data[low : low + 2].eq(tag), data[StateBeat["child"].offset].eq(child)]
        need, arm_tag = self.free("need", CHILDREN_BITS), self.free("arm_tag", 2)
        given(m, (need == 1) | (need == 2))
        m.d.comb += [
            dut.packets.valid.eq(self.free("valid")),
            dut.packets.payload.data.eq(data),
            dut.packets.payload.last.eq(self.free("last")),
            dut.merged.ready.eq(self.free("ready")),
            dut.write.valid.eq(self.free("arm")),
            dut.write.payload.eq(Cat(Const(fixed, 128), arm_tag, Const(0, 6), need, Const(0, 3))),
        ]
        always(m, dut.packets.ready)
        always(m, ~dut.emit.queue.w_en | dut.emit.queue.w_rdy)
        always(m, ~dut.completions.w_en | dut.completions.w_rdy)
        self._frames(m)
        self._slot(m, tag, child, need, arm_tag)

    def _frames(self, m: Module) -> None:
        """A result is a header, a state beat and the numbers, whatever came in."""
        merged, index = self.dut.merged, Signal(range(BEATS + 2))
        with m.If(merged.valid & merged.ready):
            m.d.sync += index.eq(Mux(merged.payload.last, 0, index + 1))
        always(m, ~merged.valid | (merged.payload.last == (index == BEATS + 1)))

    def _slot(self, m: Module, tag: Signal, child: Signal, need: Signal, arm_tag: Signal) -> None:
        dut = self.dut
        armed, epoch, wanted, seen, emitted = Signal(), Signal(), Signal(2), Signal(2), Signal()
        with m.If(dut.write.valid & ~arm_tag[0] & ~dut.busy[0]):
            m.d.sync += [armed.eq(1), epoch.eq(arm_tag[1]), wanted.eq(need), seen.eq(0), emitted.eq(0)]
        arrived = self._arrivals(m, dut.busy[0] & ~tag[0] & (tag[1] == epoch), child, seen, wanted)
        with m.If(arrived.any()):
            m.d.sync += seen.eq(seen | arrived)
        completion = dut.emit.completion
        starts = (dut.emit.step == Step.WAIT) & completion.valid & (completion.payload.slot == 0)
        complete = armed & (seen[0] + seen[1] == wanted)
        with m.If(starts):
            m.d.sync += emitted.eq(1)
        always(m, ~starts | (complete & ~emitted))
        always(m, ~emitted | complete | ~dut.busy[0])
        if self.prompt:
            self._promptly(m, complete & ~emitted & ~starts)

    def _promptly(self, m: Module, waiting: Any) -> None:
        """A complete slot's result begins within PATIENCE cycles where the reader is willing and nothing else comes."""
        waited = Signal(range(PATIENCE + 1))
        m.d.sync += waited.eq(Mux(waiting, waited + 1, 0))
        given(m, self.dut.merged.ready)
        given(m, ~(self.dut.packets.valid & waiting))
        always(m, waited != PATIENCE)

    def _arrivals(self, m: Module, matches: Any, child: Signal, seen: Signal, wanted: Signal) -> Signal:
        """Read the packets again, beat by beat: which child's packet ends in this cycle and counts for slot 0."""
        beat, last = self.dut.packets.valid, self.dut.packets.payload.last
        part, counts, who = Signal(2), Signal(), Signal(2)
        now, arrived = Signal(2), Signal(2)
        m.d.comb += now.eq(Mux(counts & ((seen >> child) & 1 == 0) & (child < wanted), 1 << child, 0))
        with m.If(beat), m.Switch(part):
            with m.Case(0):
                m.d.sync += [counts.eq(matches), who.eq(0), part.eq(~last)]
            with m.Case(1):
                m.d.sync += [who.eq(now), part.eq(Mux(last, 0, 2))]
                m.d.comb += arrived.eq(Mux(last, now, 0))
            with m.Default():
                m.d.sync += part.eq(Mux(last, 0, 2))
                m.d.comb += arrived.eq(Mux(last, who, 0))
        return arrived


class NoNumbers(ReduceLanes):
    """Lanes that add nothing: the control does not look at them."""

    def elaborate(self, platform: object) -> Module:
        """Nothing."""
        return Module()


class Hasty(ReduceFront):
    """A mutant: the first child's packet completes a slot."""

    def _commit(self, m: Module) -> None:
        super()._commit(m)
        m.d.comb += self.complete.eq(self.commit)


class CountsTwice(ReduceFront):
    """A mutant: a child's second packet counts like another child's."""

    def _state(self, m: Module) -> None:
        super()._state(m)
        m.d.comb += self.arrival.state.eq(self.shaped & self.known)


class Polite(ReduceFront):
    """A mutant: the input waits for a completion to be taken note of."""

    def _commit(self, m: Module) -> None:
        super()._commit(m)
        waits = Signal()
        m.d.sync += waits.eq(self.complete)
        m.d.comb += self.packets.ready.eq(~waits)


class Repeats(ReduceEmit):
    """A mutant: every other result is sent a second time."""

    def _steps(self, m: Module) -> None:
        super()._steps(m)
        again = Signal()
        with m.If((self.step == Step.WAIT) & self.completion.valid):
            m.d.sync += again.eq(~again)
        m.d.comb += self.completion.ready.eq((self.step == Step.WAIT) & again)


class Forgets(ReduceEmit):
    """A mutant: with a full queue a completion is thrown away."""

    def _steps(self, m: Module) -> None:
        super()._steps(m)
        with m.If(self.step == Step.BODY):
            m.d.comb += self.completion.ready.eq(1)
