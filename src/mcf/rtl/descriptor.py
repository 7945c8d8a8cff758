"""The descriptor: 256 bits with which software asks for packets, one or a whole loop of them. `TABLE` knows the bits.

One descriptor is `repeat` + 1 messages. A message is cut into packets of at most `len` payload beats; `tag` counts
them and the last one has the flag LAST, as in `mcf.schedule.packets`. From one message to the next the header and the
address move by the `step_` fields, so that one descriptor covers the blocks of a layer, or the layers of a block.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mcf.errors import ScheduleError
from mcf.schedule.wire import CRC_BYTES, pack

DESCRIPTOR_BITS = 256
DESCRIPTOR_WORDS = DESCRIPTOR_BITS // 32
META_BITS = CRC_BYTES * 8  # the header without its CRC, which the packetizer writes
MAX_BEATS = 64  # payload of a packet: a router's queues have room for what is under way and two of these
NO_EVENT = 0
NO_TAG = 0
STATE_BIT = 39  # of an address: 1 asks for the next record of a state that ATTEND has finished, wherever it would lie


@dataclass(frozen=True, kw_only=True)
class DescriptorField:
    """One field of the descriptor: `width` bits from bit `low` on; a signed one is a two's complement number."""

    name: str
    low: int
    width: int
    is_signed: bool
    meaning: str

    @property
    def high(self) -> int:
        """The field's most significant bit."""
        return self.low + self.width - 1

    @property
    def span(self) -> range:
        """The values that fit."""
        top = 1 << self.width
        return range(-(top // 2), top // 2) if self.is_signed else range(top)


_ROWS: tuple[tuple[str, int, bool, str], ...] = (
    ("meta", META_BITS, False, "bits 111..0 of the first packet's header; `len` is the most payload beats of a packet"),
    ("done_tag", 16, False, "what the completion says when the last packet has left; 0: no completion"),
    ("address", 40, False, "byte address of the first message's payload, a multiple of 16"),
    ("beats", 16, False, "payload beats of one message; 0: one packet that is a header alone"),
    ("wait_event", 8, False, "event to take before the first packet leaves; 0: none"),
    ("set_event", 8, False, "event to set when the last packet has left; 0: none"),
    ("repeat", 10, False, "further messages after the first"),
    ("step_address", 20, True, "beats from one message's payload to the next one's"),
    ("step_half", 10, True, "added per message to {block, is_v}: 1 walks K and V of block after block, 2 the blocks"),
    ("step_layer", 4, True, "added per message to `layer`"),
    ("step_head", 4, True, "added per message to `head`"),
    ("step_tag", 4, True, "added per message to the first packet's `tag`"),
    ("wait_each", 1, False, "1: take the event before every message, not only the first"),
    ("set_each", 1, False, "1: set the event after every message, not only the last"),
    ("spare", 2, False, "0"),
)


def _table() -> Iterator[DescriptorField]:
    low = 0
    for name, width, is_signed, meaning in _ROWS:
        yield DescriptorField(name=name, low=low, width=width, is_signed=is_signed, meaning=meaning)
        low += width
    assert low == DESCRIPTOR_BITS


TABLE: tuple[DescriptorField, ...] = tuple(_table())
FIELDS: Mapping[str, DescriptorField] = {field.name: field for field in TABLE}


def pack_descriptor(header: Mapping[str, int], **values: int) -> int:
    """Pack the first packet's header fields and the other fields (left out: 0) into a 256-bit integer.

    Raises ScheduleError naming a field that is unknown or whose value does not fit, and for an address or a payload
    that hardware would refuse.
    """
    unknown = [name for name in values if name not in FIELDS or name == "meta"]
    if unknown:
        raise ScheduleError(f"unknown descriptor field {unknown[0]!r}: known are {', '.join(FIELDS)}")
    if values.get("address", 0) % 16:
        raise ScheduleError(
            f"got a payload at byte {values['address']}: expected a multiple of 16, the bytes of a beat"
        )
    if values.get("beats", 0) and not header.get("len", 0):
        raise ScheduleError(f"got {values['beats']} payload beats in packets of len = 0: expected len from 1 on")
    if (over := header.get("len", 0) - MAX_BEATS) > 0:
        raise ScheduleError(
            f"got packets of {header['len']} payload beats: a router's queue takes in {MAX_BEATS}, {over} fewer; "
            "send them as several packets, by a smaller len"
        )
    word = pack(header) & (1 << META_BITS) - 1
    for name, value in values.items():
        field = FIELDS[name]
        if value not in field.span:
            raise ScheduleError(f"got {name} = {value}: expected {field.span.start} to {field.span.stop - 1}")
        word |= (value & (1 << field.width) - 1) << field.low
    return word


def unpack_descriptor(word: int) -> dict[str, int]:
    """Read a 256-bit integer into its fields; `meta` stays an integer of META_BITS bits."""
    raw = {field.name: word >> field.low & (1 << field.width) - 1 for field in TABLE}
    return {
        name: value if value in FIELDS[name].span else value - (1 << FIELDS[name].width) for name, value in raw.items()
    }


def words_of(word: int) -> list[int]:
    """The 32-bit words of a descriptor, in the order in which they are written."""
    return [word >> 32 * i & 0xFFFFFFFF for i in range(DESCRIPTOR_WORDS)]


def markdown() -> str:
    """The table for the documents, one line per field."""
    lines = ["| bits | width | field | meaning |", "|---|---|---|---|"]
    for f in TABLE:
        sign = "signed; " if f.is_signed else ""
        lines.append(f"| {f.high}:{f.low} | {f.width} | `{f.name}` | {sign}{f.meaning} |")
    return "\n".join(lines) + "\n"
