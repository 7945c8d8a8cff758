"""A finished head becomes a state record: 15 bits of the sum, outputs no larger, 17 beats. Golden: `record_of`."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import enum, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.attention import HEAD_BITS, OUT_FRACTION, ROWS
from mcf.rtl.golden.state import EMPTY_EXPONENT, LANES, LARGEST, MANTISSA_BITS, NUMBER_BITS
from mcf.rtl.hdl.attn_tile import INDEX_BITS, HeadRowStream, HeadSum, rounded, shifted, with_carry
from mcf.rtl.hdl.beat import BEAT_BITS, BeatStream

_RECORD = 1 + ROWS // LANES
_QUEUE = 32  # beats: a record begins only when all of it has room
_MAX_SHIFT = HEAD_BITS - MANTISSA_BITS
_DEPTH = 3  # cycles from a row to its number
_LANE_BITS = (LANES - 1).bit_length()


class Step(enum.Enum):
    """Wait for a head, find its shift, shift the sum, take the rows, let the last ones pass."""

    WAIT = 0
    SHIFT = 1
    SUM = 2
    ROWS = 3
    FLUSH = 4


class StatePack(Component):
    """`sums` and 128 `rows` of a head become a record on `states`, without header, `last` on its last beat."""

    def __init__(self) -> None:
        super().__init__({"sums": In(stream.Signature(HeadSum)), "rows": In(HeadRowStream), "states": Out(BeatStream)})

    def elaborate(self, platform: object) -> Module:
        """The state machine, the lane that the sum and then all rows go through, and the beats."""
        m = Module()
        self.step, self.head, self.shift = Signal(Step), Signal(HeadSum), Signal(range(_MAX_SHIFT + 1))
        m.submodules.queue = self.queue = SyncFIFO(width=BEAT_BITS + 1, depth=_QUEUE)
        self.take = Signal()
        self._steps(m)
        self._beats(m, *self._lane(m))
        return m

    def _steps(self, m: Module) -> None:
        index, pause = Signal(INDEX_BITS), Signal(range(_DEPTH + 2))
        m.d.comb += [
            self.sums.ready.eq((self.step == Step.WAIT) & (self.queue.level < _QUEUE - _RECORD)),
            self.rows.ready.eq(self.step == Step.ROWS),
            self.take.eq(self.rows.valid & self.rows.ready),
        ]
        with m.Switch(self.step):
            with m.Case(Step.WAIT):
                m.d.sync += self.head.eq(self.sums.payload)
                with m.If(self.sums.valid & self.sums.ready):
                    m.d.sync += self.step.eq(Step.SHIFT)
            with m.Case(Step.SHIFT):
                m.d.sync += [self.shift.eq(self._outgrown(m)), self.step.eq(Step.SUM)]
            with m.Case(Step.SUM):
                m.d.sync += self.step.eq(Step.ROWS)
            with m.Case(Step.ROWS), m.If(self.take):
                m.d.sync += [index.eq(index + 1), pause.eq(0)]
                with m.If(index == ROWS - 1):
                    m.d.sync += self.step.eq(Step.FLUSH)
            with m.Case(Step.FLUSH):
                m.d.sync += pause.eq(pause + 1)
                with m.If(pause == _DEPTH + 1):
                    m.d.sync += self.step.eq(Step.WAIT)

    def _outgrown(self, m: Module) -> Signal:
        """Bits of the sum above 15."""
        shift = Signal.like(self.shift)
        for bit in range(_MAX_SHIFT):
            with m.If(self.head.sum[MANTISSA_BITS + bit]):
                m.d.comb += shift.eq(bit + 1)
        return shift

    def _lane(self, m: Module) -> tuple[Signal, Signal, Signal]:
        """Shift by eights | by ones | round and clip: a number, whether it is a row's, whether it is the sum."""
        is_sum = self.step == Step.SUM
        rows, sums = Signal(_DEPTH), Signal(_DEPTH)
        m.d.sync += [rows.eq(Cat(self.take, rows)), sums.eq(Cat(is_sum, sums))]
        coarse, fine = (Signal(signed(HEAD_BITS + 1), name=name) for name in ("coarse", "fine"))
        value = with_carry(Mux(is_sum, self.head.sum.as_signed(), self.rows.payload))
        number, limit = Signal(signed(NUMBER_BITS)), Signal(signed(NUMBER_BITS), init=LARGEST)
        m.d.sync += [
            coarse.eq(shifted(m, value, self.shift[3:], 8)),
            fine.eq(shifted(m, coarse, self.shift[:3], 1)),
        ]
        twice = Cat(0, limit).as_signed()  # compared before rounding: `fine` is twice the number, and its carry
        clipped = Mux(fine > twice, limit, Mux(fine < ~twice, -limit, rounded(fine)[:NUMBER_BITS]))
        m.d.sync += number.eq(clipped)
        with m.If(sums[1]):
            m.d.sync += limit.eq(clipped)
        with m.Elif(self.step == Step.WAIT):
            m.d.sync += limit.eq(LARGEST)
        return number, rows[-1], sums[-1]

    def _beats(self, m: Module, number: Signal, is_row: Signal, is_sum: Signal) -> None:
        """Eight numbers are a beat; the sum's beat goes first."""
        lanes, place = Signal(BEAT_BITS), Signal(INDEX_BITS)
        exponent = Signal(signed(NUMBER_BITS))
        m.d.sync += exponent.eq(Mux(self.head.sum == 0, EMPTY_EXPONENT, self.head.exponent - OUT_FRACTION + self.shift))
        gathered = Cat(lanes[NUMBER_BITS:], number)
        with m.If(is_row):
            m.d.sync += [lanes.eq(gathered), place.eq(place + 1)]
        state = Cat(number, exponent, Const(1, NUMBER_BITS), self.head.child, Const(0, BEAT_BITS))[:BEAT_BITS]
        m.d.comb += [
            self.queue.w_en.eq(is_sum | (is_row & place[:_LANE_BITS].all())),
            self.queue.w_data.eq(Cat(Mux(is_sum, state, gathered), is_row & place.all())),
            *(self.states.valid.eq(self.queue.r_rdy), self.states.payload.eq(self.queue.r_data)),
            self.queue.r_en.eq(self.states.ready),
        ]
