"""A command of the compute half, and the steps that it is cut into, one per tile and vector or query head."""

from enum import IntEnum

from amaranth.lib import data

from mcf.rtl.commands import TABLE

Command = data.StructLayout({field.name: field.width for field in TABLE})
POSITION_BITS = 13  # of the tile buffer: one more than an address


class Kind(IntEnum):
    """What a step reads; SCALES: of a tile of values, ahead of its numbers. EMPTY: nothing, a head's state alone."""

    WEIGHTS = 0
    KEYS = 1
    VALUES = 2
    EMPTY = 3
    SCALES = 4


Step = data.StructLayout(
    {
        "kind": 3,
        "start": POSITION_BITS,  # in the tile buffer
        "beats": 8,  # with the scales of weights and keys
        "release": 9,
        "place": 11,  # of the first activation
        "columns": 8,
        "first": 1,  # of a row's sum
        "last": 1,
        "shift": 5,
        "address": 36,  # in beats: where the rows go
        "tokens": 8,
        "slot": 4,
        "finish": 1,
        "child": 4,
        "ends": 1,  # the command
        "event": 8,
    }
)
