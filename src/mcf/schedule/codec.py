"""The bytes form: what the head ships to the workers, with its sha256. No pickle; sizes are checked before use."""

import hashlib
import json
from typing import Any

import numpy as np

from mcf.errors import ScheduleError
from mcf.schedule.meta import INT4_BYTES, ScheduleMeta
from mcf.schedule.pieces import PIECE
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import OWNER, STEP

MAGIC = b"MCFS\x01\x00\x00\x00"


def to_bytes(sched: Schedule) -> bytes:
    """Magic, length of a JSON head, the head (meta, routes, counts), then the arrays' raw little-endian bytes."""
    head = {
        "meta": sched.meta.said(),
        "routes": sched.routes,
        "counts": [len(sched.pieces), len(sched.owners), len(sched.steps), len(sched.after)],
    }
    text = json.dumps(head, sort_keys=True).encode()
    arrays = (sched.pieces, sched.owners, sched.steps, sched.after)
    return b"".join([MAGIC, len(text).to_bytes(8, "little"), text, *(a.tobytes() for a in arrays)])


def from_bytes(data: bytes) -> Schedule:
    """Read `to_bytes`; raises ScheduleError when the bytes are not a whole schedule."""
    if data[:8] != MAGIC or len(data) < 16:
        raise ScheduleError("not a schedule's bytes: the magic number is missing")
    size = int.from_bytes(data[8:16], "little")
    try:
        head = json.loads(data[16 : 16 + size])
        meta = ScheduleMeta(**{key: _meta_value(key, value) for key, value in head["meta"].items()})
        counts = _counts(head["counts"])
        routes = tuple(tuple((int(a), int(b)) for a, b in r) for r in head["routes"])
    except ScheduleError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ScheduleError(f"a schedule's head cannot be read: {error}") from None
    dtypes = (PIECE, OWNER, STEP, np.dtype("<i4"))
    expected = 16 + size + sum(n * d.itemsize for n, d in zip(counts, dtypes, strict=True))
    if len(data) != expected:
        raise ScheduleError(f"a schedule of {len(data)} bytes: expected {expected}; it was cut or damaged on the way")
    arrays, at = [], 16 + size
    for count, dtype in zip(counts, dtypes, strict=True):
        arrays.append(np.frombuffer(data, dtype=dtype, count=count, offset=at))
        at += count * dtype.itemsize
    return Schedule(meta=meta, pieces=arrays[0], owners=arrays[1], routes=routes, steps=arrays[2], after=arrays[3])


def _meta_value(key: str, value: Any) -> Any:
    """A meta value as JSON has it: text, a whole number or a list of whole numbers; `kv_bytes` may be a half."""
    if key == "kv_bytes" and value == INT4_BYTES:
        return value
    if isinstance(value, str if key in ("policy", "topology") else int) and not isinstance(value, bool):
        return value
    if isinstance(value, list) and all(type(v) is int for v in value):
        return tuple(value)
    raise ValueError(f"{key} is {value!r}")


def _counts(values: list[int]) -> list[int]:
    counts = [int(n) for n in values]
    if len(counts) != 4 or min(counts) < 0:
        raise ValueError(f"counts are {counts}: expected 4 whole numbers")
    return counts


def digest(data: bytes) -> str:
    """The sha256 of a schedule's bytes, in hex."""
    return hashlib.sha256(data).hexdigest()
