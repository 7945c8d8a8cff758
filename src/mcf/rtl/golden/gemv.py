"""Products of INT4 weights and signed 12-bit activations over one quantisation group, and the beats that carry them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS = 128  # rows that are multiplied at once, and numbers of 4 bits in a wide beat
WEIGHT_BITS = 4
ACTIVATION_BITS = 12
GROUP = 128  # most columns in a group
WIDE_BITS = ROWS * WEIGHT_BITS
# A group's sum lies in -8 * 2047 * 128 .. 8 * 2048 * 128: one number more than 22 bits hold, so it takes 23.
FIELD_BITS = (WEIGHT_BITS - 1) + (ACTIVATION_BITS - 1) + (GROUP - 1).bit_length() + 1
PARTIAL_BITS = FIELD_BITS + 1

Ints = NDArray[np.int64]


def wide_beat(numbers: Sequence[int] | Ints) -> int:
    """One number of 4 bits per row as a wide beat; row r in bits 4r..4r + 3."""
    word = 0
    for row, number in enumerate(numbers):
        assert -8 <= number <= 7, number
        word |= (int(number) & 15) << WEIGHT_BITS * row
    return word


def partials(weights: Ints, activations: Ints) -> Ints:
    """Sums [rows] of a group: `weights` [rows, columns] in -8..7, `activations` [columns] in -2048..2047."""
    assert weights.shape[1] == len(activations) <= GROUP, weights.shape
    assert (activations >= -2048).all()
    assert (activations <= 2047).all()
    return weights.astype(np.int64) @ activations.astype(np.int64)
