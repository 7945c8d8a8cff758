"""Numbers as they travel: float32, bfloat16 rounded to nearest even; KV as INT4, a scale for each token and head."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.schedule.meta import INT4_BYTES, ScheduleMeta

Array = NDArray[Any]
INT4_MOST = 7  # -7 to 7 times the scale: as far below as above


def to_wire(values: Array, num_bytes: float) -> bytes:
    """Values as bytes, little-endian, 4 (float32) or 2 (bfloat16) each."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    if num_bytes == 4:
        return bytes(bits.tobytes())
    assert num_bytes == 2, num_bytes
    rounded: Array = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return bytes(rounded.astype("<u2").tobytes())


def from_wire(data: bytes, num_bytes: float) -> Array:
    """The float64 values that `to_wire` wrote."""
    if num_bytes == 4:
        return np.frombuffer(data, "<f4").astype(np.float64)
    assert num_bytes == 2, num_bytes
    return (np.frombuffer(data, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)


def kv_to_wire(values: Array, meta: ScheduleMeta) -> bytes:
    """Keys or values [n, d] of n tokens in one KV head as the schedule's bytes.

    INT4: the d numbers of a token, each to the nearest of 15 multiples of its scale, two in a byte, the first in the
    lower half; then the scale, 1/7 of the largest magnitude, as bfloat16 or float32. Off by half a scale at most, and
    nothing more the second time.
    """
    if meta.kv_bytes != INT4_BYTES:
        return to_wire(values, meta.kv_bytes)
    size = meta.kv_scale_bytes
    scales = to_wire(np.abs(values).max(axis=-1) / INT4_MOST, size)
    unit = from_wire(scales, size)[:, None]
    ratio = np.divide(values, unit, out=np.zeros(values.shape), where=unit > 0)
    nibbles = np.rint(ratio).clip(-INT4_MOST, INT4_MOST).astype(np.int8).view(np.uint8) & 15
    packed = nibbles[:, 0::2] | nibbles[:, 1::2] << 4
    return bytes(np.hstack([packed, np.frombuffer(scales, np.uint8).reshape(-1, size)]).tobytes())


def kv_from_wire(data: bytes, meta: ScheduleMeta) -> Array:
    """The float64 values [n, d] that `kv_to_wire` wrote."""
    if meta.kv_bytes != INT4_BYTES:
        return from_wire(data, meta.kv_bytes).reshape(-1, meta.head_dim)
    rows = np.frombuffer(data, np.uint8).reshape(-1, meta.head_dim // 2 + meta.kv_scale_bytes)
    packed, scales = rows[:, : meta.head_dim // 2], rows[:, meta.head_dim // 2 :]
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(rows), meta.head_dim)
    steps = (nibbles ^ 8).astype(np.int64) - 8
    out: Array = steps * from_wire(scales.tobytes(), meta.kv_scale_bytes)[:, None]
    return out


def as_kept(values: Array, meta: ScheduleMeta) -> Array:
    """Keys or values [T, Hkv, d] as pages of the schedule's type hold them: what others get of them is the same."""
    flat = values.reshape(-1, meta.head_dim)
    return kv_from_wire(kv_to_wire(flat, meta), meta).reshape(values.shape)
