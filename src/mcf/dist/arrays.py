"""Arrays as frame payloads: raw bytes, with the dtype and the shape in the json fields."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.dist.control import Frame
from mcf.errors import TransportError

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")


def array_fields(array: NDArray[Any]) -> dict[str, Any]:
    """Return the json fields that describe `array`: `dtype` (a name in `DTYPES`) and `shape`."""
    if array.dtype.name not in DTYPES:
        raise TransportError(f"an array of {array.dtype.name} cannot be sent; expected one of {', '.join(DTYPES)}")
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def array_bytes(array: NDArray[Any]) -> bytes:
    """Return the raw bytes of `array` in C order."""
    return array.tobytes()


def frame_array(frame: Frame) -> NDArray[Any]:
    """Return the array (read-only) that a frame's payload holds, as its fields `dtype` and `shape` say.

    Raises TransportError if the fields are wrong or do not fit the payload's length.
    """
    dtype, shape = frame["dtype"], frame["shape"]
    if dtype not in DTYPES or not all(type(size) is int and size >= 0 for size in shape):
        raise TransportError(f"control frame {frame.type!r} describes an array of {dtype!r} with shape {shape}")
    expected_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    if expected_bytes != len(frame.payload):
        raise TransportError(
            f"control frame {frame.type!r} has {len(frame.payload)} payload bytes; "
            f"{dtype} of shape {shape} needs {expected_bytes}"
        )
    return np.frombuffer(frame.payload, dtype=dtype).reshape(shape)
