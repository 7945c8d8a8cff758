"""What the processor beside the node does to keys, values and queries: float64 -> the integers of golden.attention."""

import math

import numpy as np
from numpy.typing import NDArray

from mcf.errors import UserError
from mcf.rtl.golden.attention import BASE_SHIFT, FRACTION_BITS, ROW_SHIFT, SCALE_BITS, Queries, Shard

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
INT4_MAX = 7  # symmetric: -8 is not used
VALUE_UNIT = 8  # a value is int4 / 8 of its scale
QUERY_MAX = 2047
MAX_SHIFT = 31
LARGEST_SCALE = (1 << SCALE_BITS) - 1


def key_power(k: Floats) -> int:
    """The power x with which the largest scale of keys [T, d], times 2^x, fills 16 bits."""
    largest = float(np.abs(k).max(initial=0)) / INT4_MAX
    return SCALE_BITS - 1 - math.frexp(largest)[1] if largest else 0


def value_scale(v: Floats) -> float:
    """The number that values [T, d] are fractions of: all shards whose states meet must use the same."""
    largest = float(np.abs(v).max(initial=0)) / INT4_MAX
    return largest * VALUE_UNIT * (1 << SCALE_BITS) / LARGEST_SCALE or 1.0


def quantise_shard(k: Floats, v: Floats, *, power: int, v_scale: float) -> Shard:
    """INT4 keys and values [T, d] with a scale for each token; `power` and `v_scale` fit the largest of all shards.

    Raises UserError for keys or values beyond them.
    """
    k_int, k_scales = _quantise(k, 2.0**power, f"a key beyond 2^{SCALE_BITS - power} * {INT4_MAX}")
    unit = (1 << SCALE_BITS) / (v_scale / VALUE_UNIT)
    v_int, v_scales = _quantise(v, unit, f"a value beyond v_scale = {v_scale:g}")
    return Shard(k=k_int, v=v_int, k_scale=k_scales, v_scale=v_scales)


def _quantise(values: Floats, per_unit: float, beyond: str) -> tuple[Ints, Ints]:
    scales = np.ceil(np.abs(values).max(-1, initial=0) / INT4_MAX * per_unit - 1e-6).astype(np.int64)
    if (scales > LARGEST_SCALE).any():
        raise UserError(f"got {beyond}: expected a scale for the largest of all shards")
    integers = np.rint(values * per_unit / np.maximum(scales, 1)[:, None]).astype(np.int64)
    return integers.clip(-INT4_MAX, INT4_MAX), scales


def quantise_queries(q: Floats, *, power: int, scale: float) -> Queries:
    """12-bit queries [H, d]; `scale` is the model's, d^-0.5. Raises UserError for scores that do not fit."""
    per_unit = np.abs(q).max(-1) / QUERY_MAX
    integers = np.rint(q / np.where(per_unit > 0, per_unit, 1)[:, None]).astype(np.int64)
    to_score = per_unit * scale * math.log2(math.e) * 2.0 ** (ROW_SHIFT + FRACTION_BITS - power)
    pairs = [_fixed(float(factor)) for factor in to_score]
    return Queries(
        q=integers,
        scale=np.array([mantissa for mantissa, _ in pairs], dtype=np.int64),
        shift=np.array([shift for _, shift in pairs], dtype=np.int64),
    )


def _fixed(factor: float) -> tuple[int, int]:
    """(mantissa, shift) with mantissa / 2^(16 + shift) = factor, as many bits as there are."""
    shift = min(SCALE_BITS - math.frexp(factor)[1] - BASE_SHIFT, MAX_SHIFT)
    if shift < 0:
        raise UserError(f"got a query whose scores are {factor:g} times a row: expected less than 1")
    mantissa = round(math.ldexp(factor, BASE_SHIFT + shift))
    return (mantissa, shift) if mantissa <= LARGEST_SCALE else (mantissa // 2, shift - 1)
