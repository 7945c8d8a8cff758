"""Sums of groups times their scales, added up, shifted and kept within 32 bits."""

import numpy as np
from numpy.typing import NDArray

SCALE_BITS = 16  # a scale is an unsigned fixed-point number; where its point lies is the matrix's affair
ROW_BITS = 32
SUM_BITS = 48
MAX_SHIFT = 31

Ints = NDArray[np.int64]


def scaled_rows(partials: Ints, scales: Ints, shift: int) -> Ints:
    """Rows [rows] of a matrix: `partials` and `scales` [groups, rows]; rounded half up after the shift, saturated."""
    assert partials.shape == scales.shape, (partials.shape, scales.shape)
    assert 0 <= shift <= MAX_SHIFT, shift
    sums = (partials.astype(np.int64) * scales.astype(np.int64)).sum(axis=0)
    assert (np.abs(sums) < 1 << SUM_BITS - 1).all(), "the sum of all groups has 48 bits"
    rounded = (sums + (np.int64(1) << shift >> 1)) >> shift
    limit = 1 << ROW_BITS - 1
    kept: Ints = np.clip(rounded, -limit, limit - 1)
    return kept
