"""The reduction unit without clocks: slots that count their children, merge in the order of arrival and emit once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mcf.rtl.golden.state import (
    HEADROOM_BITS,
    LANES,
    MAX_CHILDREN,
    Accumulator,
    BlockState,
    add,
    finish,
    from_beats,
    start,
    to_beats,
)
from mcf.schedule.wire import FIELDS, HEADER_BITS, Flags, ReduceOp, pack, unpack

T = TypeVar("T", BlockState, Accumulator)
MAX_CHILD = (1 << HEADROOM_BITS) - 1


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What arms a slot: the tag its packets carry, how many children send one, and what the result says.

    The slot is the low bits of `tag`, the rest an epoch that packets must match. `child` is this node's place among its
    parent's children, `header` the result's, packed by `mcf.schedule.wire.pack`; its `reduce_op` is the slot's.
    """

    tag: int
    children: int
    child: int
    header: int


@dataclass(kw_only=True)
class _Slot:
    setup: Setup
    op: int
    seen: set[int] = field(default_factory=set)
    acc: Accumulator | None = None
    poisoned: bool = False


@dataclass(kw_only=True)
class ReduceModel:
    """The twin of `hdl.reduce.Reduce`: the same packets and set-ups give the same results in the same order.

    `results` holds (header, payload beats); the payload of a poisoned result is None: whatever it is, nobody reads it.
    """

    slots: int = 32
    beats: int = 16
    results: list[tuple[int, list[int] | None]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=lambda: {"length": 0, "slot": 0, "child": 0})
    refused: int = 0
    _armed: dict[int, _Slot] = field(default_factory=dict)

    def arm(self, setup: Setup) -> bool:
        """Arm a slot; refused (and counted) where it is in use, or where the set-up cannot come true."""
        number, fields = setup.tag % self.slots, _raw(setup.header)
        good = number not in self._armed and 1 <= setup.children <= MAX_CHILDREN and fields["len"] == self.beats + 1
        if good:
            self._armed[number] = _Slot(setup=setup, op=fields["reduce_op"])
        self.refused += not good
        return good

    def packet(self, packet: Sequence[int]) -> None:
        """Take one packet: a header, and as many payload beats as came before the end mark."""
        header, payload = _raw(packet[0]), packet[1:]
        slot = self._armed.get(header["tag"] % self.slots)
        if not payload or header["len"] != self.beats + 1:
            self.dropped["length"] += 1
        elif slot is None or slot.setup.tag != header["tag"] or slot.op != header["reduce_op"]:
            self.dropped["slot"] += 1
        elif (child := payload[0] >> 48 & MAX_CHILD) in slot.seen or child >= slot.setup.children:
            self.dropped["child"] += 1
        else:
            slot.seen.add(child)
            self._take(slot, header, payload)

    def _take(self, slot: _Slot, header: dict[str, int], payload: Sequence[int]) -> None:
        slot.poisoned |= bool(header["flags"] & Flags.POISONED) or len(payload) != self.beats + 1
        if not slot.poisoned:
            state, _ = from_beats(payload, self.beats * LANES)
            slot.acc = start(state) if slot.acc is None else add(slot.acc, state, ReduceOp(slot.op))
        if len(slot.seen) == slot.setup.children:
            self.results.append(self._result(slot))
            del self._armed[slot.setup.tag % self.slots]

    def _result(self, slot: _Slot) -> tuple[int, list[int] | None]:
        if slot.poisoned:
            return poisoned(slot.setup.header), None
        assert slot.acc is not None
        return slot.setup.header, to_beats(finish(slot.acc, ReduceOp(slot.op)), slot.setup.child, self.beats)


def poisoned(header: int) -> int:
    """The same header with the flag POISONED, and the CRC that belongs to it."""
    fields = unpack(header)
    return pack({**fields, "flags": fields["flags"] | Flags.POISONED})


def _raw(header: int) -> dict[str, int]:
    assert 0 <= header < 1 << HEADER_BITS
    return {name: header >> f.low & f.limit - 1 for name, f in FIELDS.items()}


def possible_merges(parts: Sequence[Sequence[BlockState]]) -> list[BlockState]:
    """All results of one merge, for all orders in which its states may arrive; few differ. Of each part there are the
    states that it may be.
    """
    reached: dict[int, list[Accumulator]] = {}  # which parts have arrived, as bits -> what a slot may hold
    for arrived in range(1, 1 << len(parts)):
        last = [number for number in range(len(parts)) if arrived >> number & 1]
        reached[arrived] = _distinct(
            [acc for number in last for acc in _after(reached.get(arrived ^ 1 << number), parts[number])]
        )
    return _distinct([finish(acc) for acc in reached[(1 << len(parts)) - 1]])


def _after(before: list[Accumulator] | None, part: Sequence[BlockState]) -> list[Accumulator]:
    if before is None:
        return [start(state) for state in part]
    return [add(acc, state) for acc in before for state in part]


def _distinct(found: Sequence[T]) -> list[T]:
    bits = {(int(s.exponent), int(s.sum_), int(s.count), s.out.tobytes()): s for s in found}
    return list(bits.values())
