"""The DSP48E2 cell by its attributes, as the vendor's user guide (UG579) describes it, as far as this project goes:
pre-adder, multiplier and adder, no cascades, patterns, logic or SIMD.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Ways through the cell that this model knows; a cell that is set otherwise is not one that it can speak of.
KNOWN: Mapping[str, Sequence[int | str]] = {
    "AREG": (0, 1, 2),
    "BREG": (0, 1, 2),
    "CREG": (0, 1),
    "DREG": (0, 1),
    "ADREG": (0, 1),
    "MREG": (0, 1),
    "PREG": (1,),
    "OPMODEREG": (0, 1),
    "AMULTSEL": ("A", "AD"),
    "PREADDINSEL": ("A",),
    "BMULTSEL": ("B",),
    "USE_MULT": ("MULTIPLY",),
    "USE_SIMD": ("ONE48",),
    "A_INPUT": ("DIRECT",),
    "B_INPUT": ("DIRECT",),
}
_WIDTHS = {"A": 30, "B": 18, "C": 48, "D": 27}


@dataclass(kw_only=True)
class Cell:
    """One cell: `attributes` as the instance has them, `inmode` and `alumode` constant."""

    attributes: Mapping[str, int | str]
    inmode: int
    alumode: int
    p: int = 0  # the output, signed
    _pipes: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, known in KNOWN.items():
            assert self.attributes[name] in known, (name, self.attributes[name])
        assert self.alumode == 0, "only Z + W + X + Y"
        assert not self.inmode & ~0b00110, "only A2 or nothing, with or without D, added"
        for name in ("A", "B", "C", "D", "AD", "M", "OPMODE"):
            self._pipes[name] = [0] * int(self.attributes[f"{name}REG"])

    def step(self, ports: Mapping[str, int], *, ce: bool, ce_p: bool) -> int:
        """One clock edge: `ports` holds A, B, C, D (signed) and OPMODE before it. Return p after it."""
        now = {name: self._end(name, _signed(ports[name], width)) for name, width in _WIDTHS.items()}
        a = 0 if self.inmode & 0b00010 else _signed(now["A"], 27)
        added = _signed(a + (now["D"] if self.inmode & 0b00100 else 0), 27)
        factor = self._end("AD", added) if self.attributes["AMULTSEL"] == "AD" else a
        product = factor * now["B"]
        m, opmode = self._end("M", product), self._end("OPMODE", ports["OPMODE"])
        total = _signed(self._z(opmode, now["C"]) + _product(opmode, m), 48)
        if ce:
            for name, value in {**{n: _signed(ports[n], w) for n, w in _WIDTHS.items()}, "AD": added}.items():
                self._shift(name, value)
            self._shift("M", product)
            self._shift("OPMODE", ports["OPMODE"])
        if ce_p:
            self.p = total
        return self.p

    def _z(self, opmode: int, c: int) -> int:
        assert opmode >> 7 == 0, "W adds nothing"
        return {0b000: 0, 0b010: self.p, 0b011: c}[opmode >> 4 & 7]

    def _end(self, name: str, value: int) -> int:
        """What comes out of a port's registers; the port itself where there are none."""
        pipe = self._pipes[name]
        return pipe[-1] if pipe else value

    def _shift(self, name: str, value: int) -> None:
        pipe = self._pipes[name]
        pipe[:] = [value, *pipe][: len(pipe)]


def _product(opmode: int, m: int) -> int:
    """X and Y together give the product, or nothing; one without the other means nothing."""
    return {0b0101: m, 0b0000: 0}[opmode & 0b1111]


def _signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> width - 1 else value
