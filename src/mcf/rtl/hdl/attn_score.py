"""The first pass of the attention unit over a tile: rows become base-2 scores, and the largest one an exponent."""

from amaranth.hdl import Cat, Module, Mux, Signal, signed
from amaranth.lib import enum, stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.attention import FRACTION_BITS, ROWS, SCORE_BITS
from mcf.rtl.hdl.attn_tile import EXPONENT_BITS, INDEX_BITS, PAGES, RowStream, Scored, TileCommand, rounded, shifted
from mcf.rtl.hdl.dsp import Dsp, Z

_HALF = 16  # a row is multiplied in two halves
_DEPTH = 9  # cycles from a row to its score in a register


class Step(enum.Enum):
    """Wait for a command, take rows, let the last ones pass, find the exponent, hand over."""

    WAIT = 0
    ROWS = 1
    FLUSH = 2
    EXPONENT = 3
    DONE = 4


class AttnScore(Component):
    """Writes the scores of a tile into a page and tells the next pass.

    `commands` and, for each with tokens, 128 `rows`. `write`, `address` and `data` go to the memory of scores. `scored`
    hands a page over, `release` (a pulse) gives it back.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "commands": In(stream.Signature(TileCommand)),
                "rows": In(RowStream),
                "scored": Out(stream.Signature(Scored)),
                "release": In(1),
                "write": Out(1),
                "address": Out(INDEX_BITS + 1),
                "data": Out(signed(SCORE_BITS)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The state machine, the product, its shift, and the maximum behind it."""
        m = Module()
        self.step, self.command = Signal(Step), Signal(TileCommand)
        self.top = Signal(signed(SCORE_BITS))
        self.take = Signal()
        m.d.comb += self.take.eq(self.rows.valid & self.rows.ready)
        valids = self._valids(m)
        self._steps(m, valids)
        self._score(m)
        self._maximum(m, valids[-1])
        return m

    def _valids(self, m: Module) -> list[Signal]:
        """Whether a score is in each stage."""
        valids = [Signal(name=f"valid{i}") for i in range(_DEPTH)]
        for before, after in zip([self.take, *valids], valids, strict=False):
            m.d.sync += after.eq(before)
        return valids

    def _steps(self, m: Module, valids: list[Signal]) -> None:
        free, page, count = Signal(range(PAGES + 1), init=PAGES), Signal(), Signal(INDEX_BITS)
        begins, command = Signal(), self.commands.payload
        exponent = Signal(signed(EXPONENT_BITS))
        m.d.comb += [
            self.commands.ready.eq((self.step == Step.WAIT) & (free != 0)),
            begins.eq(self.commands.valid & self.commands.ready),
            self.rows.ready.eq(self.step == Step.ROWS),
            self.scored.valid.eq(self.step == Step.DONE),
            self.address[-1].eq(page),
            *(self.scored.payload.page.eq(page), self.scored.payload.exponent.eq(exponent)),
        ]
        for name in ("tokens", "slot", "finish", "child"):
            m.d.comb += self.scored.payload[name].eq(self.command[name])
        m.d.sync += free.eq(free - begins + self.release)
        with m.Switch(self.step):
            with m.Case(Step.WAIT):
                m.d.sync += self.command.eq(command)
                with m.If(begins):
                    m.d.sync += self.step.eq(Mux(command.tokens == 0, Step.DONE, Step.ROWS))
            with m.Case(Step.ROWS), m.If(self.take):
                m.d.sync += count.eq(count + 1)
                with m.If(count == ROWS - 1):
                    m.d.sync += self.step.eq(Step.FLUSH)
            with m.Case(Step.FLUSH), m.If(~Cat(*valids).any()):
                m.d.sync += self.step.eq(Step.EXPONENT)
            with m.Case(Step.EXPONENT):
                least = self.top + ((1 << FRACTION_BITS) - 1)
                m.d.sync += [exponent.eq(least >> FRACTION_BITS), self.step.eq(Step.DONE)]
            with m.Case(Step.DONE), m.If(self.scored.ready):
                m.d.sync += [self.step.eq(Step.WAIT), page.eq(~page)]

    def _score(self, m: Module) -> None:
        """The product, less 16 bits, in two multipliers; then the command's shift by eights and by ones, rounded."""
        m.submodules.low, m.submodules.high = low, high = Dsp(), Dsp()
        row, scale = self.rows.payload, self.command.q_scale
        upper = [Signal(signed(_HALF), name=f"upper{i}") for i in range(2)]
        m.d.sync += [upper[0].eq(row[_HALF:]), upper[1].eq(upper[0])]
        m.d.comb += [
            *(low.a.eq(row[:_HALF]), low.b.eq(scale), low.z.eq(Z.NOTHING)),
            *(high.a.eq(upper[1]), high.b.eq(scale), high.z.eq(Z.C), high.c.eq(low.p >> _HALF)),
            *(low.ce.eq(1), low.ce_p.eq(1), high.ce.eq(1), high.ce_p.eq(1)),
        ]
        carries = [Signal(name=f"carry{i}") for i in range(2)]
        m.d.sync += [carries[0].eq(low.p[_HALF - 1]), carries[1].eq(carries[0])]
        product = Cat(carries[1], high.p[: 2 * _HALF])
        coarse, fine, total = (Signal(signed(2 * _HALF + 1), name=name) for name in ("coarse", "fine", "total"))
        m.d.sync += [
            coarse.eq(shifted(m, product, self.command.shift[3:], 8)),
            fine.eq(shifted(m, coarse, self.command.shift[:3], 1)),
        ]
        m.d.comb += total.eq(rounded(fine))
        above, sign = total[SCORE_BITS - 1 : -1], total[-1]
        limit = Cat((~sign).replicate(SCORE_BITS - 1), sign).as_signed()
        m.d.sync += self.data.eq(Mux(Mux(sign, ~above.all(), above.any()), limit, total))

    def _maximum(self, m: Module, valid: Signal) -> None:
        index, counts = self.address[:INDEX_BITS], Signal()
        m.d.comb += [self.write.eq(valid), counts.eq(valid & (index < self.command.tokens))]
        at = Signal(INDEX_BITS)
        m.d.comb += index.eq(at)
        with m.If(valid):
            m.d.sync += at.eq(at + 1)
        with m.If(counts & ((at == 0) | (self.data > self.top))):
            m.d.sync += self.top.eq(self.data)
