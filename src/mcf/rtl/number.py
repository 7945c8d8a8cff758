"""Numbers as they travel: float32, and bfloat16 rounded to nearest even."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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
