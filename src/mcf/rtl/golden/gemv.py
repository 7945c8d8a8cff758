"""Products of INT4 weights and activations over one quantisation group, and the beats that carry them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ROWS = 128  # rows that are multiplied at once, and numbers of 4 bits in a wide beat
WEIGHT_BITS = 4
ACTIVATION_BITS = 18  # of the multiplier's port; what a group may hold is bounded by its sum
GROUP = 128  # most columns in a group
WIDE_BITS = ROWS * WEIGHT_BITS
# Activations of 12 bits, or any whose absolute values add up to less than 2^18: a group's sum lies in (-2^21, 2^21].
# That is one number more than 22 bits hold, so the sum takes 23.
FIELD_BITS = 22
PARTIAL_BITS = FIELD_BITS + 1
LARGEST_SUM = (1 << 18) - 1

Ints = NDArray[np.int64]


def wide_beat(numbers: Sequence[int] | Ints) -> int:
    """One number of 4 bits per row as a wide beat; row r in bits 4r..4r + 3."""
    word = 0
    for row, number in enumerate(numbers):
        assert -8 <= number <= 7, number
        word |= (int(number) & 15) << WEIGHT_BITS * row
    return word


def partials(weights: Ints, activations: Ints) -> Ints:
    """Sums [rows] of a group: `weights` [rows, columns] in -8..7, `activations` [columns] of 12 bits each, or of up to
    18 whose absolute values add up to at most LARGEST_SUM.
    """
    assert weights.shape[1] == len(activations) <= GROUP, weights.shape
    is_narrow = bool(((activations >= -2048) & (activations <= 2047)).all())
    assert is_narrow or np.abs(activations).sum() <= LARGEST_SUM, activations
    return weights.astype(np.int64) @ activations.astype(np.int64)
