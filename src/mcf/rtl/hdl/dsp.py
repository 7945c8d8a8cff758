"""One DSP48E2 of UltraScale+: p = z + (a + d) * b in one fixed pipeline; plain logic where nothing is synthesised.

Inference leaves registers, pre-adder and accumulator outside the cell, at twice the LUTs; so synthesis names the cell.
No open tool simulates it: what is simulated is its twin. `mcf.rtl.golden.dsp48e2` reads CELL as the vendor's user guide
(UG579) does, and a test holds the two together.
"""

from collections.abc import Mapping
from enum import IntEnum

from amaranth.hdl import Cat, ClockSignal, Const, Instance, Module, Signal, signed
from amaranth.lib.wiring import Component, In, Out

PLATFORM = "xcup"  # what synthesis hands to `elaborate` where cells of UltraScale+ are wanted

# Attributes of the cell: which registers stand in the way, and which way is taken. Those not named: the vendor's own.
CELL: Mapping[str, int | str] = {
    "AREG": 1,
    "ACASCREG": 1,
    "BREG": 2,
    "BCASCREG": 2,
    "CREG": 1,
    "DREG": 1,
    "ADREG": 1,
    "MREG": 1,
    "PREG": 1,
    "OPMODEREG": 1,
    "INMODEREG": 0,
    "ALUMODEREG": 0,
    "CARRYINREG": 0,
    "CARRYINSELREG": 0,
    "AMULTSEL": "AD",
    "BMULTSEL": "B",
    "PREADDINSEL": "A",
    "USE_MULT": "MULTIPLY",
    "USE_SIMD": "ONE48",
    "A_INPUT": "DIRECT",
    "B_INPUT": "DIRECT",
    "USE_PATTERN_DETECT": "NO_PATDET",
    "AUTORESET_PATDET": "NO_RESET",
}
INMODE = 0b00100  # A2 and B2 at the multiplier, D added to A
ALUMODE = 0b0000  # Z + W + X + Y
OPMODE_XY = 0b0101  # X and Y: the product; Z above them is the port, W is nothing


class Z(IntEnum):
    """What the product is added to, as the cell encodes it: nothing, the sum so far, or port c. The third bit is 0."""

    NOTHING = 0b00
    SUM = 0b10
    C = 0b11


class Dsp(Component):
    """a, d and b taken in cycle t, c and z in cycle t + 2, are in p in cycle t + 4, while `ce` and `ce_p` are high.

    `ce_p` (with `ce`) lets p take its new value in cycle t + 3. a + d must fit 27 bits.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "a": In(signed(27)),
                "d": In(signed(27)),
                "b": In(signed(18)),
                "c": In(signed(48)),
                "z": In(Z),
                "ce": In(1),
                "ce_p": In(1),
                "p": Out(signed(48)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The cell itself for its own family, else the twin."""
        m = Module()
        if platform == PLATFORM:
            m.submodules.cell = self._cell()
        else:
            self._twin(m)
        return m

    def _cell(self) -> Instance:
        enables = ("CEA2", "CEB1", "CEB2", "CEC", "CED", "CEAD", "CEM", "CECTRL")
        off = ("CEA1", "CEALUMODE", "CEINMODE", "CECARRYIN", "CARRYIN", "CARRYCASCIN", "MULTSIGNIN")
        resets = ("A", "B", "C", "D", "M", "P", "CTRL", "INMODE", "ALUMODE", "ALLCARRYIN")
        ports = {
            **{f"i_{name}": self.ce for name in enables},
            **{f"i_{name}": Const(0, 1) for name in (*off, *(f"RST{name}" for name in resets))},
            "i_CLK": ClockSignal(),
            "i_CEP": self.ce_p,
            "i_CARRYINSEL": Const(0, 3),
            "i_INMODE": Const(INMODE, 5),
            "i_ALUMODE": Const(ALUMODE, 4),
            "i_OPMODE": Cat(Const(OPMODE_XY, 4), self.z, Const(0, 3)),
            "i_A": Cat(self.a, self.a[-1].replicate(3)),
            "i_B": self.b,
            "i_C": self.c,
            "i_D": self.d,
            "o_P": self.p,
            "i_ACIN": Const(0, 30),
            "i_BCIN": Const(0, 18),
            "i_PCIN": Const(0, 48),
        }
        return Instance("DSP48E2", **{f"p_{name}": value for name, value in CELL.items()}, **ports)

    def _twin(self, m: Module) -> None:
        a, d, sum_ = (Signal(signed(27), name=name) for name in ("a1", "d1", "ad"))
        b1, b2 = Signal(signed(18)), Signal(signed(18))
        c, product = Signal(signed(48)), Signal(signed(45))
        z = Signal(Z)
        with m.If(self.ce):
            m.d.sync += [a.eq(self.a), d.eq(self.d), b1.eq(self.b), sum_.eq(a + d), b2.eq(b1), product.eq(sum_ * b2)]
            m.d.sync += [c.eq(self.c), z.eq(self.z)]
        with m.If(self.ce_p):
            with m.Switch(z):
                with m.Case(Z.SUM):
                    m.d.sync += self.p.eq(self.p + product)
                with m.Case(Z.C):
                    m.d.sync += self.p.eq(c + product)
                with m.Default():
                    m.d.sync += self.p.eq(product)
