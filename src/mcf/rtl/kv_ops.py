"""What the replica directory is asked and what it answers: codes, and the hash of its sets.

The states of an entry and their events are those of `mcf.schedule.kv`, the one transition table. Three more operations
look at an entry: a reader begins (READ), a reader ends (DONE), and LOOK.
"""

from enum import IntEnum

from mcf.schedule.kv import ABSENT, DRAINING, READABLE, TRANSITIONS
from mcf.schedule.wire import FIELDS, Op


class KvOp(IntEnum):
    """Operations: the events of the transition table under their names there, then the three that only look."""

    PRODUCE = 0
    RECV = 1
    ARRIVE = 2
    DRAIN = 3
    FREE = 4
    STREAM = 5
    RELEASE = 6
    READ = 7
    DONE = 8
    LOOK = 9


# What packets ask for; the entry is the one that their header names, all 32 bits of it.
PACKET_OPS: dict[int, KvOp] = {Op.KV_DRAIN: KvOp.DRAIN, Op.KV_INVALIDATE: KvOp.FREE}

EVENTS: dict[int, str] = {KvOp[event.upper()]: event for _, event in TRANSITIONS}

CREATING = frozenset(KvOp[event.upper()] for state, event in TRANSITIONS if state == ABSENT)
ENDING = frozenset(KvOp[event.upper()] for (_, event), after in TRANSITIONS.items() if after == ABSENT)
LOSING = ENDING | {KvOp.DRAIN}  # what must never happen to an owner's copy
SERVING = frozenset(READABLE) - {DRAINING}  # states in which a new reader may begin


class KvCode(IntEnum):
    """Answers; what is neither OK, HELD nor FREED was refused and changed nothing."""

    OK = 0
    HELD = 1  # a free or release is accepted, and happens when the last reader is done
    FREED = 2  # the last reader is done, and with it the entry is gone
    MISSING = 3  # no such entry
    STATE = 4  # the transition table does not have it
    OWNER = 5  # it would lose, or stream, the owner's copy
    READERS = 6  # as many readers as can be counted, or none to be done
    FULL = 7  # no place left in the entry's set


WAYS = 4  # entries that share a set
MAX_READERS = 63
KV_ID_LOW = FIELDS["slot"].low
KV_ID_BITS = FIELDS["block"].high + 1 - KV_ID_LOW
BLOCK_LOW = FIELDS["block"].low - KV_ID_LOW


def hash_bits(set_bits: int) -> list[list[int]]:
    """For each bit of a set's number, the bits of the kv_id whose parity it is.

    The low bits of `block` count up, those of `layer` down, so that a rectangle of blocks and layers fills the sets
    evenly; each low bit of `block` has one place only, so set and the other bits name the kv_id.
    """
    places: list[list[int]] = [[BLOCK_LOW + i] for i in range(set_bits)]
    for name, first, step in (("layer", -1, -1), ("head", 2, 1), ("is_v", 3, 1), ("slot", 4, -1)):
        for i in range(FIELDS[name].width):
            places[(first + i * step) % set_bits].append(FIELDS[name].low - KV_ID_LOW + i)
    for i in range(set_bits, FIELDS["block"].width):
        places[i % set_bits].append(BLOCK_LOW + i)
    return places


def set_of(kv_id: int, set_bits: int) -> int:
    """The number of the set in which a kv_id lives."""
    return sum((sum(kv_id >> bit for bit in bits) & 1) << i for i, bits in enumerate(hash_bits(set_bits)))
