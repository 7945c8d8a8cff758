"""The ring in plain Python: a descriptor is the list of packets that it asks for."""

from dataclasses import dataclass

from mcf.rtl.descriptor import META_BITS, NO_EVENT, NO_TAG, unpack_descriptor
from mcf.schedule.wire import FIELDS, Flags

HALVES = FIELDS["is_v"].low  # {block, is_v} is one number of 15 bits from here on
HALF_BITS = FIELDS["is_v"].width + FIELDS["block"].width


@dataclass(frozen=True, kw_only=True)
class Item:
    """One packet that the ring asks for; `wait` is taken before it leaves, `set` and `tag` follow when it has left."""

    meta: int  # bits 111..0 of the header; hcrc is 0
    address: int  # byte address of its payload
    beats: int
    wait: int = NO_EVENT
    set: int = NO_EVENT
    tag: int = NO_TAG


def is_bad(word: int) -> bool:
    """Say whether hardware skips this descriptor: payload in packets of no length, or an address off the beat."""
    values = unpack_descriptor(word)
    return bool(values["beats"] and not _get(values["meta"], "len")) or values["address"] % 16 != 0


def expand(word: int) -> list[Item]:
    """List the packets of a descriptor, in order; none of a bad one."""
    if is_bad(word):
        return []
    values = unpack_descriptor(word)
    messages = [_message(values, number) for number in range(values["repeat"] + 1)]
    return [item for message in messages for item in message]


def _message(values: dict[str, int], number: int) -> list[Item]:
    meta = _moved(values, number)
    most, left = _get(meta, "len"), values["beats"]
    address = (values["address"] + 16 * number * values["step_address"]) % (1 << 40)
    is_first, is_last = number == 0, number == values["repeat"]
    items: list[Item] = []
    while left or not items:
        beats = min(most, left)
        left -= beats
        header = _put(_put(meta, "len", beats), "tag", _get(meta, "tag") + len(items))
        header = _put(header, "flags", _get(meta, "flags") & ~Flags.LAST | (0 if left else Flags.LAST))
        items.append(
            Item(
                meta=header,
                address=address,
                beats=beats,
                wait=values["wait_event"] if not items and (is_first or values["wait_each"]) else NO_EVENT,
                set=values["set_event"] if not left and (is_last or values["set_each"]) else NO_EVENT,
                tag=values["done_tag"] if not left and is_last else NO_TAG,
            )
        )
        address = (address + 16 * beats) % (1 << 40)
    return items


def _moved(values: dict[str, int], number: int) -> int:
    """The header of message `number`: the first one's, moved by the steps; each field wraps round."""
    meta = values["meta"]
    for name in ("layer", "head", "tag"):
        meta = _put(meta, name, _get(meta, name) + number * values[f"step_{name}"])
    halves = (meta >> HALVES) + number * values["step_half"]
    mask = (1 << HALF_BITS) - 1
    return meta & ~(mask << HALVES) & (1 << META_BITS) - 1 | (halves & mask) << HALVES


def _get(meta: int, name: str) -> int:
    return meta >> FIELDS[name].low & FIELDS[name].limit - 1


def _put(meta: int, name: str, value: int) -> int:
    mask = FIELDS[name].limit - 1
    return meta & ~(mask << FIELDS[name].low) | (value & mask) << FIELDS[name].low
