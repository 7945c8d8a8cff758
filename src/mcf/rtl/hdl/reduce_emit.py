"""The reduction unit's output: a complete slot becomes one packet, read out when the input leaves the memory alone."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out
from amaranth.utils import ceil_log2

from mcf.rtl.golden.state import (
    ACCUMULATOR_BITS,
    GUARD_BITS,
    HEADROOM_BITS,
    LANES,
    LARGEST,
    MANTISSA_BITS,
    NUMBER_BITS,
)
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.hdl.reduce_lanes import Sums
from mcf.rtl.hdl.reduce_slot import SlotConfig
from mcf.schedule.crc16 import crc16
from mcf.schedule.wire import CRC_BYTES, FIELDS, Flags, ReduceOp

QUEUE_BEATS = 16  # results wait here for the network; a beat is read out only where a place is kept for it
_POISON_BIT = FIELDS["flags"].low + Flags.POISONED.bit_length() - 1
_POISON_CRC = crc16((1 << _POISON_BIT).to_bytes(CRC_BYTES, "little")) ^ crc16(bytes(CRC_BYTES))


class Step(enum.Enum):
    """What the emitter does next: wait, fetch the slot's record, find its scale, send header, state, numbers."""

    WAIT = 0
    FETCH = 1
    SCALE = 2
    HEADER = 3
    STATE = 4
    BODY = 5


class ReduceEmit(Component):
    """Sends the slots of `completion` one after the other to `merged`.

    `slot` and `index` address the tables: `sums`, `config` and `header` answer at once, `held` (asked for by `reading`,
    which `blocked` forbids) a cycle later. `done` frees the slot with its last row.
    """

    def __init__(self, slots: int, beats: int) -> None:
        self.beats = beats
        slot_bits = ceil_log2(slots)
        super().__init__(
            {
                "completion": In(stream.Signature(data.StructLayout({"slot": slot_bits, "poisoned": 1}))),
                "merged": Out(BeatStream),
                "slot": Out(slot_bits),
                "index": Out(ceil_log2(beats)),
                "sums": In(Sums),
                "config": In(SlotConfig),
                "header": In(Meta),
                "blocked": In(1),
                "reading": Out(1),
                "held": In(LANES * ACCUMULATOR_BITS),
                "done": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Steps of one result, a pipeline of two stages behind them, and the queue."""
        m = Module()
        self.step, self.poisoned = Signal(Step), Signal()
        self.room = Signal(range(QUEUE_BEATS + 1), init=QUEUE_BEATS)
        self.issue = Signal()
        self._steps(m)
        self._scale(m)
        self._queue(m)
        return m

    def _steps(self, m: Module) -> None:
        last = self.index == self.beats - 1
        sending = (self.step == Step.HEADER) | (self.step == Step.STATE)
        m.d.comb += [
            self.completion.ready.eq(self.step == Step.WAIT),
            self.reading.eq((self.step == Step.BODY) & (self.room != 0) & ~self.blocked),
            self.issue.eq(self.reading | (sending & (self.room != 0))),
            self.done.eq(self.reading & last),
        ]
        with m.Switch(self.step):
            with m.Case(Step.WAIT):
                m.d.sync += [self.slot.eq(self.completion.payload.slot), self.index.eq(0)]
                m.d.sync += self.poisoned.eq(self.completion.payload.poisoned)
                with m.If(self.completion.valid):
                    m.d.sync += self.step.eq(Step.FETCH)
            with m.Case(Step.FETCH):
                m.d.sync += self.step.eq(Step.SCALE)
            with m.Case(Step.SCALE):
                m.d.sync += self.step.eq(Step.HEADER)
            with m.Case(Step.HEADER), m.If(self.issue):
                m.d.sync += self.step.eq(Step.STATE)
            with m.Case(Step.STATE), m.If(self.issue):
                m.d.sync += self.step.eq(Step.BODY)
            with m.Case(Step.BODY):
                with m.If(self.reading):
                    m.d.sync += self.index.eq(self.index + 1)
                with m.If(self.done):
                    m.d.sync += self.step.eq(Step.WAIT)

    def _scale(self, m: Module) -> None:
        """Fetch: the sum. Scale: by how much it has outgrown its bits. Then all numbers are shifted by that."""
        sums, merging, child = Signal(Sums), Signal(), Signal.like(self.config.child)
        self.grown = Signal(range(HEADROOM_BITS + 1))
        with m.If(self.step == Step.FETCH):
            m.d.sync += [
                sums.eq(self.sums),
                merging.eq(self.config.reduce_op == ReduceOp.MERGE),
                child.eq(self.config.child),
            ]
        top = sums.sum[MANTISSA_BITS + GUARD_BITS : -1]  # none of these bits is set in a sum that has not grown
        grown = Signal(range(HEADROOM_BITS + 1))
        for bit in range(HEADROOM_BITS):
            with m.If(top[bit] & ~sums.sum[-1] & merging):
                m.d.comb += grown.eq(bit + 1)
        with m.If(self.step == Step.SCALE):
            m.d.sync += self.grown.eq(grown)
        exponent, count = Signal(NUMBER_BITS), Signal(NUMBER_BITS)
        m.d.sync += [exponent.eq(sums.exponent + self.grown), count.eq(sums.count)]
        self.state_beat = Cat(_rounded(m, sums.sum, self.grown), exponent, count, child)

    def _queue(self, m: Module) -> None:
        step1, step2 = Signal(Step), Signal(Step)
        valid1, valid2, last1, last2 = (Signal() for _ in range(4))
        m.d.sync += [
            valid1.eq(self.issue), valid2.eq(valid1),
            step1.eq(self.step), step2.eq(step1),
            last1.eq(self.done), last2.eq(last1),
        ]  # fmt: skip
        lanes = [_rounded(m, self.held.word_select(lane, ACCUMULATOR_BITS), self.grown) for lane in range(LANES)]
        header = Value.cast(self.header)
        poison = self.poisoned & ~header[_POISON_BIT]
        flips = (1 << _POISON_BIT) | _POISON_CRC << FIELDS["hcrc"].low
        m.submodules.queue = self.queue = queue = SyncFIFO(width=129, depth=QUEUE_BEATS)
        body = Signal(128)
        with m.Switch(step2):
            with m.Case(Step.HEADER):
                m.d.comb += body.eq(header ^ Mux(poison, flips, 0))
            with m.Case(Step.STATE):
                m.d.comb += body.eq(self.state_beat)
            with m.Default():
                m.d.comb += body.eq(Cat(*lanes))
        taken = self.merged.valid & self.merged.ready
        m.d.sync += self.room.eq(self.room - self.issue + taken)
        m.d.comb += [
            queue.w_en.eq(valid2),
            queue.w_data.eq(Cat(body, last2)),
            self.merged.valid.eq(queue.r_rdy),
            self.merged.payload.eq(queue.r_data),
            queue.r_en.eq(self.merged.ready),
        ]


def _rounded(m: Module, accumulated: Value, grown: Value) -> Value:
    """A 24-bit number >> (GUARD_BITS + grown), half up, saturated to 16 bits: a register stands in the middle."""
    bits = ACCUMULATOR_BITS - GUARD_BITS + 1  # the lowest is the last bit shifted out
    shifted, register = Signal(signed(bits)), Signal(signed(bits))
    with m.Switch(grown):
        for k in range(HEADROOM_BITS + 1):
            with m.Case(k):
                m.d.comb += shifted.eq(accumulated.as_signed() >> GUARD_BITS - 1 + k)
    m.d.sync += register.eq(shifted)
    total, out = Signal(signed(bits)), Signal(signed(NUMBER_BITS))
    m.d.comb += total.eq(register[1:].as_signed() + register[0])
    too_big = ~total[-1] & total[NUMBER_BITS - 1 : -1].any()
    too_small = total[-1] & ~total[NUMBER_BITS - 1 : -1].all()
    lowest = total[-1] & ~total[: NUMBER_BITS - 1].any()  # -2^15, which has no counterpart
    m.d.comb += out.eq(Mux(too_big, LARGEST, Mux(too_small | lowest, -LARGEST, total)))
    return out
