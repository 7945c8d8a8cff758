"""The reduction unit's arithmetic: what a slot holds plus what arrives, nine numbers at a time, in four cycles.

One shifter serves each lane: of the two numbers that of the state with the smaller exponent is shifted right, in one
stage by fours and in one by ones; the last bit shifted out is the adder's carry, which rounds half up. "Nothing to add"
(a slot's first packet, the smaller number of a MAX) is a shift by 31, which leaves 0.
"""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data
from amaranth.lib.wiring import Component, In, Out
from amaranth.utils import ceil_log2

from mcf.rtl.golden.state import ACCUMULATOR_BITS, GUARD_BITS, LANES, MAX_SHIFT, NUMBER_BITS
from mcf.rtl.hdl.reduce_front import arrival_layout
from mcf.rtl.hdl.reduce_slot import StateBeat
from mcf.schedule.wire import ReduceOp

_SHIFT_BITS = MAX_SHIFT.bit_length()
Sums = data.StructLayout({"exponent": NUMBER_BITS, "count": NUMBER_BITS, "sum": ACCUMULATOR_BITS})


class ReduceLanes(Component):
    """Adds arrivals into accumulators.

    `arrival` is of this cycle; `held` (the row that was addressed with it) is of the next, `held_sums` of the header's.
    Two cycles after `held`, `write` puts `write_data` at `write_row`; with a packet's first row also `sums`.
    """

    def __init__(self, slots: int, beats: int) -> None:
        self.row = LANES * ACCUMULATOR_BITS
        slot_bits, row_bits = ceil_log2(slots), ceil_log2(slots) + ceil_log2(beats)
        super().__init__(
            {
                "arrival": In(arrival_layout(slots, beats)),
                "held": In(self.row),
                "held_sums": In(Sums),
                "write": Out(1),
                "write_row": Out(row_bits),
                "write_data": Out(self.row),
                "write_sums": Out(1),
                "write_slot": Out(slot_bits),
                "sums": Out(Sums),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The control beside the data, and nine lanes: the ninth is the sum, which takes part with the first row."""
        m = Module()
        self._scale(m)
        self._when(m)
        arrived = Signal(LANES * NUMBER_BITS)
        m.d.sync += arrived.eq(self.arrival.data)
        for lane in range(LANES):
            new = arrived.word_select(lane, NUMBER_BITS)
            old = self.held.word_select(lane, ACCUMULATOR_BITS)
            m.d.comb += self.write_data.word_select(lane, ACCUMULATOR_BITS).eq(self._lane(m, new, old))
        m.d.comb += self.sums.sum.eq(self._lane(m, self.new_sum, self.old_sum))
        return m

    def _scale(self, m: Module) -> None:
        """From the state beat, within two cycles: who is shifted and how far, and the merged exponent and count."""
        state = data.View(StateBeat, self.arrival.data)
        self.new_sum, self.old_sum = Signal(NUMBER_BITS), Signal(ACCUMULATOR_BITS)
        new, old, lead = Signal(signed(NUMBER_BITS)), Signal(signed(NUMBER_BITS)), Signal(signed(NUMBER_BITS + 1))
        new_count, old_count, first, op = Signal(NUMBER_BITS), Signal(NUMBER_BITS), Signal(), Signal(3)
        with m.If(self.arrival.header):
            m.d.sync += [
                old.eq(self.held_sums.exponent),
                old_count.eq(self.held_sums.count),
                self.old_sum.eq(self.held_sums.sum),
            ]
        with m.If(self.arrival.state):
            m.d.sync += [
                new.eq(state.exponent),
                new_count.eq(state.count),
                self.new_sum.eq(state.sum),
                lead.eq(state.exponent.as_signed() - old),
                first.eq(self.arrival.first),
                op.eq(self.arrival.reduce_op),
            ]
        self.largest, self.take, self.shift = Signal(), Signal(), Signal(_SHIFT_BITS)
        ahead, far = ~lead[-1] & lead.any(), Signal()
        size = Mux(ahead, lead, -lead)
        m.d.comb += [self.largest.eq(op == ReduceOp.MAX), far.eq(size[_SHIFT_BITS : NUMBER_BITS + 1].any())]
        m.d.sync += [
            self.take.eq(ahead | first),
            self.shift.eq(Mux(first | self.largest | far, MAX_SHIFT, size[:_SHIFT_BITS])),
            self.sums.exponent.eq(Mux(ahead | first, new, old)),
            self.sums.count.eq(Mux(first, 0, old_count) + new_count),
        ]
        self.first, self.op_max = Signal(), Signal()
        m.d.sync += [self.first.eq(first), self.op_max.eq(self.largest)]

    def _when(self, m: Module) -> None:
        valid, rows = self.arrival.body, Cat(self.arrival.index, self.arrival.slot)
        for _ in range(3):
            next_valid, next_rows = Signal(), Signal(len(self.write_row))
            m.d.sync += [next_valid.eq(valid), next_rows.eq(rows)]
            valid, rows = next_valid, next_rows
        index_bits = len(self.arrival.index)
        m.d.comb += [
            self.write.eq(valid),
            self.write_row.eq(rows),
            self.write_sums.eq(valid & (rows[:index_bits] == 0)),
            self.write_slot.eq(rows[index_bits:]),
        ]

    def _lane(self, m: Module, arrived: Value, held: Value) -> Value:
        """One number: select, shift by fours | shift by ones | add."""
        new, old = Cat(Const(0, GUARD_BITS), arrived), held
        wider = Signal(signed(ACCUMULATOR_BITS))
        m.d.comb += wider.eq(new.as_signed())
        bigger = arrived.as_signed() > old[GUARD_BITS:-GUARD_BITS].as_signed()
        take = Mux(self.op_max, bigger | self.first, self.take)
        kept, small, coarse = Signal(ACCUMULATOR_BITS), Signal(ACCUMULATOR_BITS), Signal(signed(ACCUMULATOR_BITS + 1))
        m.d.sync += kept.eq(Mux(take, wider, old))
        m.d.comb += small.eq(Mux(take, old, wider))
        m.d.sync += coarse.eq(_shifted(m, Cat(Const(0, 1), small), self.shift[2:], 4))
        kept2, fine, ones = Signal(ACCUMULATOR_BITS), Signal(signed(ACCUMULATOR_BITS + 1)), Signal(2)
        m.d.sync += [ones.eq(self.shift[:2]), kept2.eq(kept), fine.eq(_shifted(m, coarse, ones, 1))]
        total = Signal(ACCUMULATOR_BITS)
        m.d.comb += total.eq(kept2 + fine[1:] + fine[0])
        return total


def _shifted(m: Module, value: Value, amount: Value, step: int) -> Any:
    """`value` >> amount * step, arithmetic, as one multiplexer over the amounts."""
    out = Signal(signed(len(value)))
    with m.Switch(amount):
        for k in range(1 << len(amount)):
            with m.Case(k):
                m.d.comb += out.eq(value.as_signed() >> k * step)
    return out
