"""Trace files: Chrome trace-event JSON that carries the trace and its schedule in full, so that it can be replayed.

The key `mcf` holds `version` and, in base64 of zlib, `trace` (bytes of `Trace.to_bytes`) and `schedule` (the bytes form
of a schedule). Viewers of the format leave keys alone that they do not know.
"""

import base64
import binascii
import json
import zlib
from os import PathLike
from pathlib import Path
from typing import Any

from mcf.errors import UserError
from mcf.schedule import Schedule, from_bytes, to_bytes
from mcf.trace.perfetto import to_perfetto
from mcf.trace.trace import MAGIC, Trace

KEY = "mcf"
VERSION = 1
MAX_BYTES = 2**31  # of a trace or a schedule in a file; a file may come from anywhere


def write_perfetto(path: str | PathLike[str], trace: Trace, schedule: Schedule | None = None) -> None:
    """Write the trace as a JSON file that Perfetto opens and, with the schedule that ran, `mcf show --play` replays.

    Raises UserError if the file cannot be written.
    """
    found = to_perfetto(trace)
    if schedule is not None:
        found[KEY] = {"version": VERSION, "trace": _pack(trace.to_bytes()), "schedule": _pack(to_bytes(schedule))}
    text = json.dumps(found, allow_nan=False, separators=(",", ":"))
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UserError(
            f"cannot write the trace to {str(path)!r} ({error.strerror or error}): expected the path of a file in a "
            "folder that exists and can be written; give another path"
        ) from None


def read_trace(path: str | PathLike[str]) -> tuple[Trace, Schedule]:
    """Read a trace and its schedule from what `write_perfetto` wrote. Raises UserError for anything else."""
    try:
        data = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r} ({error.strerror or error}): expected a trace file") from None
    if data.startswith(MAGIC):
        raise _refusal(path, "it has no schedule beside its events")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise _refusal(path, "it is not JSON") from None
    inner = found.get(KEY) if isinstance(found, dict) else None
    if not isinstance(inner, dict) or inner.get("version") != VERSION:
        raise _refusal(path, f"it has no {KEY!r} entry of version {VERSION}")
    trace, sched = Trace.from_bytes(_unpack(inner, "trace", path)), from_bytes(_unpack(inner, "schedule", path))
    for column, limit in (("row", len(sched)), ("node", sched.meta.num_nodes), ("peer", sched.meta.num_nodes)):
        values = trace.events[column]
        if len(values) and not (values.min() >= -1 and values.max() < limit):
            raise _refusal(path, "its events are not of its schedule")
    return trace, sched


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode()


def _unpack(inner: dict[str, Any], key: str, path: str | PathLike[str]) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        out = unpacker.decompress(base64.b64decode(inner[key], validate=True), MAX_BYTES)
    except (KeyError, TypeError, ValueError, binascii.Error, zlib.error):
        raise _refusal(path, f"its {key} is damaged") from None
    if not unpacker.eof:
        raise _refusal(path, f"its {key} is cut or too large")
    return out


def _refusal(path: str | PathLike[str], why: str) -> UserError:
    return UserError(
        f"cannot replay {str(path)!r} ({why}): expected a file that mcf run --trace or mcf sim run --save-trace wrote"
    )
