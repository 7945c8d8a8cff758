"""Matrix times vector: 128 INT4 weights and one activation a cycle, two rows in each multiplier.

A multiplier holds w_hi * 2^22 + w_lo and multiplies both with one activation; the two sums of a group build up side by
side in its 48 bits. A sum lies in (-2^21, 2^21] (mcf.rtl.golden.gemv), so 22 bits say which it is: the pattern 10...0
is +2^21. A low sum below zero has taken one from the high one, which is given back when the rows are read.
"""

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.golden.gemv import ACTIVATION_BITS, FIELD_BITS, PARTIAL_BITS, ROWS, WEIGHT_BITS
from mcf.rtl.hdl.dsp import Dsp, Z
from mcf.rtl.hdl.queue import Queue
from mcf.rtl.hdl.select import tree

QUEUE = 4  # activations that wait for their wide beats
RESULTS = 8  # rows that wait to be taken


class Gemv(Component):
    """Sums of products, row by row.

    `weights`: wide beats, one number of 4 bits per row, `last` at a group's end (at most 128 beats). `activations`: one
    for each wide beat. `partials`: the sums of a group, rows in order, one per cycle, `last` on the last row; they
    leave while the next group comes in. A group of `rows` beats or more never waits for them, a shorter one may.
    """

    def __init__(self, rows: int = ROWS) -> None:
        assert rows >= 4, "expected rows in pairs, more than one"
        assert rows & (rows - 1) == 0, "expected a power of two"
        self.rows = rows
        self.partial = partial_layout(rows)
        wide = data.StructLayout({"data": WEIGHT_BITS * rows, "last": 1})
        super().__init__(
            {
                "weights": In(stream.Signature(wide)),
                "activations": In(stream.Signature(signed(ACTIVATION_BITS))),
                "partials": Out(stream.Signature(self.partial)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Multipliers, a copy of their sums that is read out row by row, and the repair behind it."""
        m = Module()
        self.is_done = Signal()  # a group's sums stand in the multipliers
        self.busy = Signal()  # the copy is still read
        sums = self._multiply(m)
        copies = [Signal(2 * FIELD_BITS, name=f"copy{index}") for index in range(self.rows // 2)]
        with m.If(self.is_done & ~self.busy):
            m.d.sync += [copy.eq(p) for copy, p in zip(copies, sums, strict=True)]
        self._drain(m, [copy[low : low + FIELD_BITS] for copy in copies for low in (0, FIELD_BITS)])
        return m

    def _multiply(self, m: Module) -> list[Value]:
        """One pipeline for all multipliers: a beat taken in cycle t is in the sums in cycle t + 4."""
        m.submodules.queue = queue = Queue(signed(ACTIVATION_BITS), depth=QUEUE)
        connect(m, flipped(self.activations), queue.input)
        weights = self.weights.payload
        frozen, take, is_first = Signal(), Signal(), Signal(init=1)
        m.d.comb += [
            *(self.weights.ready.eq(queue.output.valid & ~frozen), queue.output.ready.eq(take)),
            take.eq(self.weights.valid & self.weights.ready),
        ]
        with m.If(take):
            m.d.sync += is_first.eq(weights.last)
        taken, firsts, lasts = Signal(3), Signal(2), Signal(4)  # bit i: of the beat taken i + 1 cycles ago
        with m.If(~frozen):
            m.d.sync += [
                *(taken.eq(Cat(take, taken)), firsts.eq(Cat(is_first, firsts))),
                lasts.eq(Cat(take & weights.last, lasts)),
            ]
        m.d.comb += [self.is_done.eq(lasts[-1]), frozen.eq(self.is_done & self.busy)]
        sums = []
        for index in range(self.rows // 2):
            m.submodules[f"dsp{index}"] = dsp = Dsp()
            low, high = (weights.data.word_select(2 * index + half, WEIGHT_BITS).as_signed() for half in (0, 1))
            m.d.comb += [
                *(dsp.d.eq(low), dsp.a.eq(high << FIELD_BITS), dsp.b.eq(queue.output.payload)),
                *(dsp.z.eq(Mux(firsts[-1], Z.NOTHING, Z.SUM)), dsp.ce.eq(~frozen), dsp.ce_p.eq(taken[-1] & ~frozen)),
            ]
            sums.append(dsp.p[: 2 * FIELD_BITS])
        return sums

    def _drain(self, m: Module, fields: Sequence[Value]) -> None:
        """Read the copy, one row per cycle: choose, then repair, then a queue. `moves` and `is_last` are registers,
        because what waits for the last row has a long way to go.
        """
        m.submodules.results = results = Queue(self.partial, depth=RESULTS)
        connect(m, results.output, flipped(self.partials))
        row, is_reading, is_last, moves = Signal(range(self.rows)), Signal(), Signal(), Signal()
        field, field_row, is_field = Signal(FIELD_BITS), Signal(range(self.rows)), Signal()
        reads = is_reading & moves
        m.d.comb += self.busy.eq(is_reading & ~(moves & is_last))
        m.d.sync += [
            moves.eq(results.level <= RESULTS - 3),  # of those that are not in it yet there are two, and the next one
            *(field.eq(tree(list(row), fields)), field_row.eq(row), is_field.eq(reads)),
        ]
        with m.If(self.is_done & ~self.busy):
            m.d.sync += [row.eq(0), is_reading.eq(1), is_last.eq(0)]
        with m.Elif(reads):
            m.d.sync += [row.eq(row + 1), is_reading.eq(~is_last), is_last.eq(row == self.rows - 2)]
        borrowed, repaired = Signal(), Signal(FIELD_BITS)
        with m.If(is_field):
            m.d.sync += borrowed.eq(_is_negative(field) & ~field_row[0])
        m.d.comb += [
            repaired.eq(field + borrowed),
            *(results.input.valid.eq(is_field), results.input.payload.row.eq(field_row)),
            results.input.payload.value.eq(Cat(repaired, _is_negative(repaired)).as_signed()),
            results.input.payload.last.eq(field_row.all()),
        ]


def partial_layout(rows: int = ROWS) -> data.StructLayout:
    """One row's sum over a group; `last` on the last row."""
    return data.StructLayout({"row": range(rows), "value": signed(PARTIAL_BITS), "last": 1})


def _is_negative(field: Value) -> Value:
    """The sign of a field: its lowest pattern stands for the largest number."""
    return field[-1] & field[:-1].any()
