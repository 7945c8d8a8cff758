"""Sums of groups times their scales, added up over a row's groups in one multiplier; rows leave as 32-bit integers."""

from itertools import pairwise

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.golden.gemv import ROWS
from mcf.rtl.golden.scale_acc import ROW_BITS, SCALE_BITS, SUM_BITS
from mcf.rtl.hdl.dsp import Dsp, Z
from mcf.rtl.hdl.gemv import partial_layout
from mcf.rtl.hdl.queue import Queue
from mcf.rtl.hdl.skid import Skid

QUEUE = 4  # scales and groups that wait for their sums
GroupCommand = data.StructLayout({"first": 1, "last": 1, "shift": 5})


class ScaleAcc(Component):
    """Golden model: `mcf.rtl.golden.scale_acc`.

    `partials`: sums of one group after the other, rows in order. `scales`: one per sum, in the same order. `groups`:
    one per group: whether it starts a matrix row's sum, whether it ends it, and by how much the end is shifted right.
    `rows` come out of a last group, one per cycle, eight cycles after their sums.
    """

    def __init__(self, rows: int = ROWS) -> None:
        assert rows >= 4, "fewer, and a row would be read before its last sum is written"
        self.rows_per_group = rows
        self.row = data.StructLayout({"row": range(rows), "value": signed(ROW_BITS), "last": 1})
        super().__init__(
            {
                "partials": In(stream.Signature(partial_layout(rows))),
                "scales": In(stream.Signature(SCALE_BITS)),
                "groups": In(stream.Signature(GroupCommand)),
                "rows": Out(stream.Signature(self.row)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """One pipeline that moves as a whole; it stands still while the row at its end is not taken."""
        m = Module()
        m.submodules.skid = skid = Skid(self.row)
        connect(m, skid.output, flipped(self.rows))
        self.move = Signal()
        stages = self._take(m)
        sums = self._accumulate(m, stages)
        value, end = self._shift(m, sums, stages[3])
        m.d.comb += [
            self.move.eq(~end.valid | skid.input.ready),
            skid.input.valid.eq(end.valid),
            skid.input.payload.eq(Cat(end.row, value, end.row.all())),
        ]
        return m

    def _take(self, m: Module) -> list[data.View]:
        """What is known of the sums taken 1, 2, 3 and 4 cycles ago."""
        m.submodules.scale_queue = scales = Queue(SCALE_BITS, depth=QUEUE)
        m.submodules.group_queue = groups = Queue(GroupCommand, depth=QUEUE)
        connect(m, flipped(self.scales), scales.input)
        connect(m, flipped(self.groups), groups.input)
        partial, group = self.partials.payload, groups.output.payload
        take = Signal()
        m.submodules.dsp = self.dsp = dsp = Dsp()
        m.d.comb += [
            *(scales.output.ready.eq(take), groups.output.ready.eq(take & partial.last)),
            self.partials.ready.eq(scales.output.valid & groups.output.valid & self.move),
            take.eq(self.partials.valid & self.partials.ready),
            *(dsp.a.eq(partial.value), dsp.b.eq(scales.output.payload), dsp.ce.eq(self.move)),
        ]
        layout = data.StructLayout({"valid": 1, "row": range(self.rows_per_group), **GroupCommand.members})
        stages = [Signal(layout, name=f"stage{age}") for age in range(1, 5)]
        with m.If(self.move):
            m.d.sync += [stages[0].eq(Cat(take, partial.row, group)), *(b.eq(a) for a, b in pairwise(stages))]
        return stages

    def _accumulate(self, m: Module, stages: list[data.View]) -> Value:
        """The sum so far is read a cycle after its partial was taken, and written back when the product is added."""
        m.submodules.sums = memory = Memory(shape=SUM_BITS, depth=self.rows_per_group, init=[])
        read, write = memory.read_port(), memory.write_port()
        m.d.comb += [
            *(read.addr.eq(stages[0].row), read.en.eq(self.move)),
            *(
                self.dsp.c.eq(read.data),
                self.dsp.z.eq(Mux(stages[1].first, Z.NOTHING, Z.C)),
                self.dsp.ce_p.eq(self.move),
            ),
            *(write.addr.eq(stages[3].row), write.data.eq(self.dsp.p), write.en.eq(stages[3].valid & self.move)),
        ]
        return self.dsp.p

    def _shift(self, m: Module, sums: Value, stage: data.View) -> tuple[Value, data.View]:
        """Shift by eights, by ones, then round and saturate; one bit below the point is kept for the rounding."""
        coarse, fine = (Signal(signed(SUM_BITS + 1), name=name) for name in ("coarse", "fine"))
        halfway, end = Signal.like(stage, name="halfway"), Signal.like(stage, name="end")
        with m.If(self.move):
            m.d.sync += [
                coarse.eq((sums << 1) >> Cat(0, 0, 0, stage.shift[3:])),
                *(halfway.eq(stage), halfway.valid.eq(stage.valid & stage.last)),
                *(fine.eq(coarse >> halfway.shift[:3]), end.eq(halfway)),
            ]
        kept, carry = fine[1 : ROW_BITS + 1], fine[0]
        above = fine[ROW_BITS:]  # all alike, or the number does not fit; nor does the largest one with a carry
        is_over = (above.any() & ~above.all()) | (~above.any() & fine[:ROW_BITS].all())
        limit = Cat((~fine[-1]).replicate(ROW_BITS - 1), fine[-1])
        return Mux(is_over, limit, (kept + carry)[:ROW_BITS]), end
