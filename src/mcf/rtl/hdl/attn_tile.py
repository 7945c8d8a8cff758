"""The records that travel through the attention unit, and the shifter that its parts share."""

from amaranth.hdl import Cat, Const, Module, Signal, Value, signed
from amaranth.lib import data, stream

from mcf.rtl.golden.attention import (
    ACTIVATION_BITS,
    HEAD_BITS,
    PARTIAL_BITS,
    PRODUCT_SHIFT,
    ROW_BITS,
    ROWS,
    SCALE_BITS,
    WEIGHT_BITS,
)
from mcf.rtl.golden.state import HEADROOM_BITS

SLOTS = 16  # query heads that accumulate at once
SLOT_BITS = (SLOTS - 1).bit_length()
INDEX_BITS = (ROWS - 1).bit_length()
PAGES = 2  # tiles that a memory between two passes holds
EXPONENT_BITS = 15  # of a tile: scores have 14 bits before the point
SUM_BITS = WEIGHT_BITS + INDEX_BITS + 1
SHIFT_BITS = PRODUCT_SHIFT.bit_length()
PRODUCT_BITS = WEIGHT_BITS + SCALE_BITS
FAR_BITS = 6  # a shift by 63 leaves nothing of any number here

_OWNER = {"slot": SLOT_BITS, "finish": 1, "child": HEADROOM_BITS}
# One query head's part of a tile: `tokens` of 128 count; score = row * q_scale / 2^(16 + shift). `finish`: the head's
# state leaves behind this tile, as `child`'s. No tokens: nothing comes, nothing is added.
TileCommand = data.StructLayout({"tokens": INDEX_BITS + 1, "q_scale": SCALE_BITS, "shift": 5, **_OWNER})
# Between the first two passes: the scores stand in `page`, none exceeds `exponent`.
Scored = data.StructLayout({"tokens": INDEX_BITS + 1, "page": 1, "exponent": signed(EXPONENT_BITS), **_OWNER})
# Between the last two: the products stand in `page`; shifted right by `shift` they are activations.
Weighed = data.StructLayout({"tokens": INDEX_BITS + 1, "page": 1, "shift": SHIFT_BITS})
# What the accumulators have to know of a tile; golden.attention.TileSum. `is_empty`: no partial sums follow.
Tile = data.StructLayout(
    {"exponent": signed(EXPONENT_BITS), "sum": SUM_BITS, "shift": SHIFT_BITS, "is_empty": 1, **_OWNER}
)
# A head that is finished: its sum, in units of 2^(exponent - 19); its 128 outputs follow.
HeadSum = data.StructLayout({"exponent": signed(EXPONENT_BITS), "sum": HEAD_BITS, "child": HEADROOM_BITS})

RowStream = stream.Signature(signed(ROW_BITS))
ScaleStream = stream.Signature(SCALE_BITS)
ActivationStream = stream.Signature(ACTIVATION_BITS)
PartialStream = stream.Signature(data.StructLayout({"row": INDEX_BITS, "value": signed(PARTIAL_BITS), "last": 1}))
HeadRowStream = stream.Signature(signed(HEAD_BITS))


def with_carry(value: Value) -> Value:
    """The number with a 0 below it: after a shift that bit is the last one shifted out, which rounds half up."""
    return Cat(Const(0, 1), value).as_signed()


def shifted(m: Module, value: Value, amount: Value, step: int, most: int | None = None) -> Signal:
    """`value` >> amount * step, arithmetic, as one multiplexer; amounts above `most` give 0."""
    out = Signal(signed(len(value)))
    with m.Switch(amount):
        for k in range((1 << len(amount)) if most is None else most + 1):
            with m.Case(k):
                m.d.comb += out.eq(value.as_signed() >> k * step)
    return out


def rounded(value: Value) -> Value:
    """A number with its carry below it -> the number rounded half up."""
    return value[1:].as_signed() + value[0]
