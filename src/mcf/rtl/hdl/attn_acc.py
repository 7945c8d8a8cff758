"""The accumulators of the attention unit: a tile's partial sums of V join what the head holds, by shift and add.

A head is a sum and 128 outputs of 36 bits with one exponent; of head and tile that with the smaller exponent is shifted
right, rounded half up. One row per cycle, read, changed and written back; the sum goes the same way as a row before the
first. Golden model: `add_tile` of golden.attention.
"""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import data, enum, stream
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.attention import HEAD_BITS, PARTIAL_BITS, PARTIAL_GUARD, PRODUCT_SHIFT, ROWS, SUM_GUARD
from mcf.rtl.hdl.attn_tile import (
    EXPONENT_BITS,
    FAR_BITS,
    INDEX_BITS,
    SLOTS,
    HeadRowStream,
    HeadSum,
    PartialStream,
    Tile,
    rounded,
    shifted,
    with_carry,
)

_FAR = (1 << FAR_BITS) - 1
_NEW_BITS = PARTIAL_BITS + PARTIAL_GUARD
_Held = data.StructLayout({"exponent": signed(EXPONENT_BITS), "sum": HEAD_BITS})


class Step(enum.Enum):
    """A tile: wait, look its head up, compare, two steps to the shifts, the sum, the rows, let the last ones pass.

    A finished head: look it up, send the sum, send the outputs.
    """

    WAIT = 0
    LOOK = 1
    LEAD = 2
    SCALE = 3
    RATE = 4
    SUM = 5
    ROWS = 6
    FLUSH = 7
    FETCH = 8
    HEAD = 9
    OUT = 10


class AttnAcc(Component):
    """Heads in 16 slots.

    `tiles` and, for each that is not empty, 128 `partials` (rows in order, `last` on the last). Behind a tile that says
    `finish` the head leaves: `sums`, then 128 `rows`; its slot is free. A head without tiles leaves with the sum 0.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "tiles": In(stream.Signature(Tile)),
                "partials": In(PartialStream),
                "sums": Out(stream.Signature(HeadSum)),
                "rows": Out(HeadRowStream),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The state machine, the memories, the shifts, and the lane that all rows go through."""
        m = Module()
        self.step, self.tile = Signal(Step), Signal(Tile)
        self.live, self.is_live = Signal(SLOTS), Signal()
        self.held, self.exponent = Signal(_Held), Signal(signed(EXPONENT_BITS))
        self.early, self.late, self.rate = (Signal(FAR_BITS, name=name) for name in ("early", "late", "rate"))
        self.take, self.pending = Signal(), Signal()
        self.index = Signal(INDEX_BITS + 1)
        self._memories(m)
        self._steps(m)
        self._shifts(m)
        self._lane(m)
        self._out(m)
        return m

    def _memories(self, m: Module) -> None:
        m.submodules.heads = heads = Memory(shape=_Held, depth=SLOTS, init=[])
        m.submodules.outputs = outputs = Memory(shape=signed(HEAD_BITS), depth=SLOTS * ROWS, init=[])
        self.read, self.write = outputs.read_port(), outputs.write_port()
        self.head, self.write_head = heads.read_port(domain="comb"), heads.write_port()
        m.d.comb += [self.head.addr.eq(self.tile.slot), self.write_head.addr.eq(self.tile.slot)]

    def _steps(self, m: Module) -> None:
        tile = self.tiles.payload
        m.d.comb += [
            self.tiles.ready.eq(self.step == Step.WAIT),
            self.partials.ready.eq(self.step == Step.ROWS),
            self.take.eq(self.partials.valid & self.partials.ready),
            self.sums.valid.eq(self.step == Step.HEAD),
        ]
        follows = {Step.LOOK: Step.LEAD, Step.LEAD: Step.SCALE, Step.SCALE: Step.RATE, Step.RATE: Step.SUM}
        with m.Switch(self.step):
            with m.Case(Step.WAIT):
                m.d.sync += self.tile.eq(tile)
                with m.If(self.tiles.valid):
                    m.d.sync += self.step.eq(Mux(tile.is_empty, Mux(tile.finish, Step.FETCH, Step.WAIT), Step.LOOK))
            for step, then in (*follows.items(), (Step.SUM, Step.ROWS), (Step.FETCH, Step.HEAD)):
                with m.Case(step):
                    m.d.sync += self.step.eq(then)
            with m.Case(Step.ROWS), m.If(self.take & self.partials.payload.last):
                m.d.sync += self.step.eq(Step.FLUSH)
            with m.Case(Step.FLUSH), m.If(~self.write.en & ~self.pending):
                m.d.sync += self.step.eq(Mux(self.tile.finish, Step.FETCH, Step.WAIT))
            with m.Case(Step.HEAD), m.If(self.sums.ready):
                m.d.sync += self.step.eq(Step.OUT)
            with m.Case(Step.OUT), m.If(self.index[-1] & self.rows.ready):
                m.d.sync += self.step.eq(Step.WAIT)

    def _shifts(self, m: Module) -> None:
        """Who is shifted right and by how much; a slot that is not live holds nothing, whatever stands there."""
        lead = Signal(signed(EXPONENT_BITS + 1))
        ahead = (~lead[-1] & lead.any()) | ~self.is_live
        size = Mux(lead[-1], -lead, lead)
        distance = Signal(FAR_BITS)
        m.d.comb += distance.eq(size[:FAR_BITS] | size[FAR_BITS : EXPONENT_BITS + 1].any().replicate(FAR_BITS))
        with m.If((self.step == Step.LOOK) | (self.step == Step.FETCH)):
            m.d.sync += [self.held.eq(self.head.data), self.is_live.eq(self.live.bit_select(self.tile.slot, 1))]
        with m.If(self.step == Step.LEAD):
            m.d.sync += lead.eq(self.tile.exponent - self.held.exponent)
        with m.If(self.step == Step.SCALE):
            m.d.sync += [
                self.early.eq(Mux(self.is_live, Mux(ahead, distance, 0), _FAR)),
                self.late.eq(Mux(ahead, 0, distance)),
                self.exponent.eq(Mux(ahead, self.tile.exponent, self.held.exponent)),
            ]
        rate = Signal(FAR_BITS + 1)
        m.d.comb += rate.eq(PRODUCT_SHIFT - self.tile.shift + self.late)
        with m.If(self.step == Step.RATE):
            m.d.sync += self.rate.eq(rate | rate[-1].replicate(FAR_BITS))

    def _lane(self, m: Module) -> None:
        """Read | shift by eights | shift by ones | add and write."""
        is_sum, row = self.step == Step.SUM, self.partials.payload
        valids, sums = Signal(3), Signal(3)
        rows = [Signal(INDEX_BITS, name=f"row{i}") for i in range(3)]
        for before, after in zip([row.row, *rows], rows, strict=False):
            m.d.sync += after.eq(before)
        m.d.sync += [valids.eq(Cat(self.take, valids)), sums.eq(Cat(is_sum, sums))]
        m.d.comb += self.pending.eq((valids | sums).any())
        new, amount = Signal(signed(_NEW_BITS)), Signal(FAR_BITS)
        m.d.sync += [
            new.eq(Mux(is_sum, Cat(Const(0, SUM_GUARD), self.tile.sum), Cat(Const(0, PARTIAL_GUARD), row.value))),
            amount.eq(Mux(is_sum, self.late, self.rate)),
        ]
        old = Mux(sums[0], self.held.sum.as_signed(), self.read.data)
        low, parts = Signal(3), []
        m.d.sync += low.eq(amount[:3])
        for value, by, ones in ((old, self.early, self.early[:3]), (new, amount, low)):
            coarse, fine = Signal(signed(len(value) + 1)), Signal(signed(len(value) + 1))
            m.d.sync += [coarse.eq(shifted(m, with_carry(value), by[3:], 8)), fine.eq(shifted(m, coarse, ones, 1))]
            parts.append(rounded(fine))
        total = Signal(signed(HEAD_BITS))
        m.d.comb += total.eq(parts[0] + parts[1])
        done = Signal()
        m.d.sync += [
            *(self.write.addr.eq(Cat(rows[-1], self.tile.slot)), self.write.data.eq(total)),
            *(self.write.en.eq(valids[-1]), done.eq(sums[-1])),
        ]
        m.d.comb += [
            self.write_head.en.eq(done),
            self.write_head.data.exponent.eq(self.exponent),
            self.write_head.data.sum.eq(self.write.data),
        ]
        with m.If(done):
            m.d.sync += self.live.bit_select(self.tile.slot, 1).eq(1)

    def _out(self, m: Module) -> None:
        """The finished head: its sum, then its rows, each offered in the cycle after it was asked for."""
        ask, out = Signal(), self.step == Step.OUT
        m.d.comb += [
            self.sums.payload.exponent.eq(self.held.exponent),
            self.sums.payload.sum.eq(Mux(self.is_live, self.held.sum, 0)),
            self.sums.payload.child.eq(self.tile.child),
            self.rows.payload.eq(self.read.data),
            ask.eq(out & ~self.index[-1] & (~self.rows.valid | self.rows.ready)),
            self.read.en.eq(ask | self.take),
            self.read.addr.eq(Cat(Mux(out, self.index[:-1], self.partials.payload.row), self.tile.slot)),
        ]
        with m.If(self.rows.ready | ~self.rows.valid):
            m.d.sync += self.rows.valid.eq(ask)
        with m.If(ask):
            m.d.sync += self.index.eq(self.index + 1)
        with m.If(self.step == Step.HEAD):
            m.d.sync += [self.index.eq(0), self.live.bit_select(self.tile.slot, 1).eq(0)]
