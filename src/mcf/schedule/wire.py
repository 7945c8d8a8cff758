"""The packet header Meta: 128 bits, one bus beat. `TABLE` alone knows the bits; all forms derive from it.

A packet on a hardware wire is {Meta, payload}. Bits count from the least significant one; as bytes a header is
little-endian, so that byte 0 holds bits 7..0. `hcrc` is the CRC of bits 111..0, that is of bytes 0..13.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.errors import ScheduleError
from mcf.schedule.crc16 import crc16, crc16_many

Array = NDArray[Any]
VERSION = 1
HEADER_BITS = 128
HEADER_BYTES = HEADER_BITS // 8
CRC_BYTES = 14  # bytes that hcrc covers


class Stage(IntEnum):
    """When a packet travels."""

    PREFILL = 0
    CONVERGE = 1
    DECODE = 2
    CONTROL = 3


class Op(IntEnum):
    """What a packet is: the operations on KV, queries and states, and the control traffic."""

    KV_REPLICA = 0
    KV_DRAIN = 1
    KV_INVALIDATE = 2
    KV_FETCH = 3
    KV_DATA = 4
    QUERY = 5
    STATE = 6
    REDUCE_RESULT = 7
    CREDIT = 8
    ACK = 9
    BARRIER = 10
    CONFIG = 11


class Collective(IntEnum):
    """How a packet spreads or gathers."""

    P2P = 0
    MULTICAST = 1
    ALL_TO_ALL = 2
    REDUCE = 3
    ALL_REDUCE = 4
    GATHER = 5


class ReduceOp(IntEnum):
    """What a node on the way does with payloads that meet."""

    NONE = 0
    MAX = 1
    SUM = 2
    MERGE = 3


class Flags(IntFlag):
    """Bits of the field `flags`."""

    EXTENDED = 1
    ACK_WANTED = 2
    LAST = 4
    POISONED = 8


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of the header: `width` bits from bit `low` on; `codes` are its named values, where it has them.

    `part_of` is the name by which the paper calls the fields together.
    """

    name: str
    low: int
    width: int
    meaning: str
    part_of: str = ""
    codes: type[IntEnum] | None = None

    @property
    def high(self) -> int:
        """The field's most significant bit."""
        return self.low + self.width - 1

    @property
    def limit(self) -> int:
        """The first value that does not fit."""
        return 1 << self.width

    @property
    def expected(self) -> str:
        """Words for an error message."""
        if self.codes is None:
            return f"expected 0 to {self.limit - 1}, which fit {self.width} bits"
        return "expected one of " + ", ".join(f"{code.value} {code.name}" for code in self.codes)


_ROWS: tuple[tuple[str, int, str, str, type[IntEnum] | None], ...] = (
    ("ver", 4, "", "version of this table, 1", None),
    ("stage", 2, "stage", "stage of inference", Stage),
    ("op", 4, "op", "operation", Op),
    ("collective", 3, "collective", "how the packet spreads or gathers", Collective),
    ("reduce_op", 3, "reduce_op", "what is done with payloads that meet", ReduceOp),
    ("flags", 4, "", "1 ext beat follows, 2 ack wanted, 4 last of message, 8 poisoned", None),
    ("src", 10, "src", "sending node", None),
    ("dst_node", 10, "dst", "receiving node; of a multicast its root", None),
    ("dst_root", 10, "dst", "root of the tree; of a plain packet its sender", None),
    ("route_id", 10, "route_id", "entry of the per-node route table; 0 is the direct link", None),
    ("slot", 5, "kv_id", "request slot", None),
    ("layer", 7, "kv_id", "layer", None),
    ("head", 5, "kv_id", "KV head", None),
    ("is_v", 1, "kv_id", "0 keys, 1 values", None),
    ("block", 14, "kv_id", "position // 64; of a QUERY or STATE the query tile", None),
    ("len", 12, "", "payload beats of 16 bytes", None),
    ("tag", 8, "", "segment of the message, reduction slot or epoch", None),
    ("hcrc", 16, "", "CRC-16/IBM-3740 of bits 111..0; a bad one drops the packet", None),
)


def _table() -> Iterator[Field]:
    low = 0
    for name, width, part_of, meaning, codes in _ROWS:
        yield Field(name=name, low=low, width=width, meaning=meaning, part_of=part_of, codes=codes)
        low += width
    assert low == HEADER_BITS


TABLE: tuple[Field, ...] = tuple(_table())
FIELDS: Mapping[str, Field] = {field.name: field for field in TABLE}
RECORD = np.dtype([(field.name, "<i8") for field in TABLE])
_COVERED = tuple(name for name in FIELDS if name != "hcrc")
_CODED = [field for field in TABLE if field.codes is not None]
_PLACES = [(field.name, field.low, field.limit - 1) for field in TABLE]


def markdown() -> str:
    """The table for the documents, one line per field."""
    lines = ["| bits | width | field | of the paper's | meaning |", "|---|---|---|---|---|"]
    for f in TABLE:
        codes = "" if f.codes is None else ": " + ", ".join(f"{code.value} {code.name}" for code in f.codes)
        lines.append(f"| {f.high}:{f.low} | {f.width} | `{f.name}` | {f.part_of} | {f.meaning}{codes} |")
    return "\n".join(lines) + "\n"


# --- single headers ---


def pack(values: Mapping[str, int]) -> int:
    """Pack a header into a 128-bit integer; fields left out are 0, but `ver` is 1, and `hcrc` is always computed.

    Raises ScheduleError naming a field that is unknown or whose value does not fit.
    """
    unknown = [name for name in values if name not in FIELDS]
    if unknown:
        raise ScheduleError(f"unknown header field {unknown[0]!r}: known are {', '.join(FIELDS)}")
    word = 0
    for name in _COVERED:
        word |= _checked(FIELDS[name], values.get(name, VERSION if name == "ver" else 0)) << FIELDS[name].low
    return word | crc16(word.to_bytes(HEADER_BYTES, "little")[:CRC_BYTES]) << FIELDS["hcrc"].low


def unpack(word: int) -> dict[str, int]:
    """Read a 128-bit integer into its fields.

    Raises ScheduleError for another size or version, for a CRC that does not match and for a code without a name.
    """
    if not 0 <= word < 1 << HEADER_BITS:
        raise ScheduleError(f"got a header of {word.bit_length()} bits: expected at most {HEADER_BITS}, not negative")
    values = {name: word >> low & mask for name, low, mask in _PLACES}
    crc = crc16(word.to_bytes(HEADER_BYTES, "little")[:CRC_BYTES])
    if values["hcrc"] != crc:
        raise ScheduleError(f"got a header with hcrc {values['hcrc']:#06x}: expected {crc:#06x}; it was damaged")
    if values["ver"] != VERSION:
        raise ScheduleError(f"got a header of version {values['ver']}: expected {VERSION}")
    for field in _CODED:
        _checked(field, values[field.name])
    return values


def _checked(field: Field, value: int) -> int:
    if not 0 <= value < field.limit or (field.codes is not None and value not in list(field.codes)):
        raise ScheduleError(f"got {field.name} = {value}: {field.expected}")
    return int(value)


# --- bulk ---


def pack_many(records: Array) -> Array:
    """Pack [n] RECORD into [n, 16] uint8, little-endian; `hcrc` is computed, `ver` taken as it stands.

    Raises ScheduleError naming the field and the first row whose value does not fit.
    """
    words = [np.zeros(len(records), dtype=np.uint64), np.zeros(len(records), dtype=np.uint64)]
    for name in _COVERED:
        _check_many(FIELDS[name], records[name])
        _put(words, FIELDS[name], records[name].astype(np.uint64))
    out = np.stack(words, 1).astype("<u8").view(np.uint8).reshape(len(records), HEADER_BYTES)
    out[:, CRC_BYTES:] = crc16_many(out[:, :CRC_BYTES]).astype("<u2")[:, None].view(np.uint8)
    return out


def unpack_many(headers: Array) -> Array:
    """Read [n, 16] uint8 into [n] RECORD; raises ScheduleError for a header that `unpack` would refuse."""
    if headers.ndim != 2 or headers.shape[1] != HEADER_BYTES or headers.dtype != np.uint8:
        raise ScheduleError(
            f"got headers of shape {headers.shape}, {headers.dtype}: expected [n, {HEADER_BYTES}], uint8"
        )
    words = np.ascontiguousarray(headers).view("<u8").reshape(-1, 2)
    out = np.empty(len(headers), dtype=RECORD)
    for field in TABLE:
        out[field.name] = _get(words, field)
    bad = out["hcrc"] != crc16_many(headers[:, :CRC_BYTES])
    if bad.any():
        raise ScheduleError(f"got a header (row {int(bad.argmax())}) whose hcrc does not match: it was damaged")
    bad = out["ver"] != VERSION
    if bad.any():
        raise ScheduleError(f"got a header (row {int(bad.argmax())}) that is not of version {VERSION}")
    for field in TABLE:
        _check_many(field, out[field.name])
    return out


def _put(words: list[Array], field: Field, values: Array) -> None:
    half, low = divmod(field.low, 64)
    words[half] |= values << np.uint64(low)
    if low + field.width > 64:
        words[half + 1] |= values >> np.uint64(64 - low)


def _get(words: Array, field: Field) -> Array:
    half, low = divmod(field.low, 64)
    value = words[:, half] >> np.uint64(low)
    if low + field.width > 64:
        value = value | words[:, half + 1] << np.uint64(64 - low)
    out: Array = value & np.uint64(field.limit - 1)
    return out


def _check_many(field: Field, values: Array) -> None:
    bad = (values < 0) | (values >= field.limit)
    if field.codes is not None:
        bad |= ~np.isin(values, list(field.codes))
    if bad.any():
        row = int(bad.argmax())
        raise ScheduleError(f"got {field.name} = {int(values[row])} (row {row}): {field.expected}")
