"""Whether what a node is told comes to an end: its commands and descriptors, each in order, worked on without clocks.

Hardware that waits for what never comes stands still. This says beforehand which command or descriptor that would be.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mcf.errors import ScheduleError
from mcf.rtl.commands import GROUP_PLACES, RECORD_ROOM, SLOTS_PER_BEAT, ComputeOp, unpack_command
from mcf.rtl.descriptor import STATE_BIT, unpack_descriptor
from mcf.rtl.golden.events import MOST_PENDING
from mcf.rtl.merges import RECORD_BEATS

RECORDS = RECORD_ROOM // RECORD_BEATS  # that a node keeps until packets take them
PLACES, SLOTS = "places", "slots"


@dataclass(frozen=True, kw_only=True)
class _Use:
    """What a command reads: activations or scales, by their places or slots."""

    number: int
    kind: str
    span: range

    def says(self) -> str:
        return f"{self.kind} {self.span.start} to {self.span.stop - 1}"


def check_order(commands: Sequence[int], descriptors: Sequence[int], *, outside: Iterable[int] = ()) -> None:
    """Raise ScheduleError naming what never comes to its turn, or what a LOAD spoils.

    That is: a wait for an event that nothing before it sets, a state that no ATTEND finishes, states that no descriptor
    takes, an event set more often than it can count, activations or scales that no LOAD has brought, and a LOAD over
    what an earlier command may still read. `outside`: events that software or other nodes set.
    """
    node = _Node(commands=[unpack_command(word) for word in commands], messages=_messages(descriptors))
    for event in outside:
        node.set_event(event, "software")
    while node.command() or node.message():
        pass
    node.check_end()


def _messages(descriptors: Sequence[int]) -> list[dict[str, int]]:
    """One entry per message: its descriptor, the event that it takes first and the one that it sets, its states."""
    out = []
    for number, f in enumerate(map(unpack_descriptor, descriptors)):
        for message in range(f["repeat"] + 1):
            does_wait, does_set = message == 0 or f["wait_each"], message == f["repeat"] or f["set_each"]
            wait, done = f["wait_event"] * int(does_wait), f["set_event"] * int(does_set)
            states = int(bool(f["beats"]) and bool(f["address"] >> STATE_BIT & 1))
            out.append({"number": number, "wait_event": wait, "set_event": done, "states": states})
    return out


@dataclass(kw_only=True)
class _Node:
    commands: list[dict[str, int]]
    messages: list[dict[str, int]]
    at: int = 0
    sent: int = 0
    records: int = 0
    events: Counter[int] = field(default_factory=Counter)
    setters: dict[int, int] = field(default_factory=dict)  # event -> the last command that has set it
    filled: dict[str, set[int]] = field(default_factory=lambda: {PLACES: set(), SLOTS: set()})
    reads: list[_Use] = field(default_factory=list)

    # --- one step ---

    def command(self) -> bool:
        """Work on the next command; False where there is none, or where it has to wait."""
        if self.at == len(self.commands) or not self._may_start(f := self.commands[self.at]):
            return False
        self._take(f["wait_event"])
        if f["fence"]:
            self.reads.clear()
        elif f["wait_event"] in self.setters:
            self.reads = [use for use in self.reads if use.number > self.setters[f["wait_event"]]]
        for use in _uses(self.at, f):
            (self._fill if f["op"] == ComputeOp.LOAD else self._read)(use, ComputeOp(f["op"]))
        self.records += _finished(f)
        if f["set_event"]:
            self.set_event(f["set_event"], f"command {self.at}")
            self.setters[f["set_event"]] = self.at
        self.at += 1
        return True

    def message(self) -> bool:
        """Work on the next message; False where there is none, or where it has to wait."""
        if self.sent == len(self.messages):
            return False
        f = self.messages[self.sent]
        if (f["wait_event"] and not self.events[f["wait_event"]]) or f["states"] > self.records:
            return False
        self._take(f["wait_event"])
        self.records -= f["states"]
        if f["set_event"]:
            self.set_event(f["set_event"], f"descriptor {f['number']}")
        self.sent += 1
        return True

    def set_event(self, event: int, who: str) -> None:
        """One more that nothing has waited for."""
        self.events[event] += 1
        if self.events[event] > MOST_PENDING:
            raise ScheduleError(f"{who} sets event {event} with {MOST_PENDING} of it pending: expected no more")

    def _may_start(self, f: dict[str, int]) -> bool:
        room = self.records == 0 or self.records + _finished(f) <= RECORDS
        return room and (not f["wait_event"] or self.events[f["wait_event"]] > 0)

    def _take(self, event: int) -> None:
        if event:
            self.events[event] -= 1

    def _fill(self, use: _Use, op: ComputeOp) -> None:
        for read in self.reads:
            if read.kind == use.kind and use.span.start < read.span.stop and read.span.start < use.span.stop:
                raise ScheduleError(
                    f"command {use.number} ({op.name}) fills {use.says()}, and command {read.number} may still read "
                    f"{read.says()}: expected another place, or fence = 1"
                )
        self.filled[use.kind].update(use.span)

    def _read(self, use: _Use, op: ComputeOp) -> None:
        if missing := set(use.span) - self.filled[use.kind]:
            raise ScheduleError(
                f"command {use.number} ({op.name}) reads {use.says()}: expected a LOAD before it that fills "
                f"{min(missing)} too"
            )
        self.reads.append(use)

    # --- the end ---

    def check_end(self) -> None:
        """Raise ScheduleError where something is left."""
        if self.at < len(self.commands):
            raise ScheduleError(self._held_command(self.commands[self.at]))
        if self.sent < len(self.messages):
            raise ScheduleError(self._held_message(self.messages[self.sent]))
        if self.records:
            raise ScheduleError(f"{self.records} states are left: expected a descriptor that takes each of them")

    def _held_command(self, f: dict[str, int]) -> str:
        name = f"command {self.at} ({ComputeOp(f['op']).name})"
        if f["wait_event"] and not self.events[f["wait_event"]]:
            return _unset(name, f["wait_event"])
        return (
            f"{name} finishes {_finished(f)} states beside {self.records} that wait: expected at most {RECORDS}, "
            "or a descriptor that takes some before"
        )

    def _held_message(self, f: dict[str, int]) -> str:
        name = f"descriptor {f['number']}"
        if f["wait_event"] and not self.events[f["wait_event"]]:
            return _unset(name, f["wait_event"])
        return f"{name} asks for a state that no command finishes: expected an ATTEND with finish = 1 for each"


def _unset(name: str, event: int) -> str:
    return f"{name} waits for event {event}, which nothing before it sets: expected set_event = {event} somewhere"


def _finished(f: dict[str, int]) -> int:
    return f["count"] if f["op"] == ComputeOp.ATTEND and f["finish"] else 0


def _uses(number: int, f: dict[str, int]) -> list[_Use]:
    """What a LOAD fills, what another command reads."""
    if f["op"] == ComputeOp.LOAD:
        scale = SLOTS_PER_BEAT if f["table"] else 1
        spans = [(SLOTS if f["table"] else PLACES, f["place"] * scale, f["count"] * scale)]
    elif f["op"] == ComputeOp.GEMV:
        spans = [(PLACES, f["place"], f["vectors"] * f["count"] * GROUP_PLACES)]
    else:
        spans = [(PLACES, f["place"], f["count"] * GROUP_PLACES), (SLOTS, f["slot"], f["count"])] if f["tiles"] else []
    return [_Use(number=number, kind=kind, span=range(at, at + size)) for kind, at, size in spans]
