"""The driver: what software does with a node's registers, as programs that ask for reads and writes and know no bus.

A program is a generator: it yields a `Read` or a `Write` and is sent the word that was read; `Wait` says that there is
nothing to do before the next interrupt. `obey` runs one on a bus of two functions, where waiting is looking again; a
simulator drives the same programs over its own.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from mcf.errors import RunError
from mcf.rtl.descriptor import FIELDS as DESCRIPTOR
from mcf.rtl.kv_ops import KvCode, KvOp
from mcf.rtl.registers import (
    BY_NAME,
    COUNTERS,
    IDENTITY,
    NUM_COMMANDS,
    NUM_COMPLETIONS,
    NUM_DESCRIPTORS,
    VERSION,
    WINDOW_BY_NAME,
    fields_of,
    value_of,
)

T = TypeVar("T")
RING = 2 * NUM_DESCRIPTORS  # how `ring_head` and `ring_tail` count
BATCH = NUM_DESCRIPTORS // 4  # descriptors per doorbell
ROOM_TAG = 0xFFFF  # done_tag of a descriptor that only tells that there is room again


@dataclass(frozen=True, kw_only=True)
class Read:
    """One 32-bit read at a byte address."""

    address: int


@dataclass(frozen=True, kw_only=True)
class Write:
    """One 32-bit write at a byte address."""

    address: int
    word: int


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Nothing to do before the node interrupts."""


Program = Generator[Read | Write | Wait, int, T]


def obey(program: Program[T], read: Callable[[int], int], write: Callable[[int, int], None]) -> T:
    """Run a program on a bus and return what it returns."""
    answer = 0
    try:
        request = next(program)
        while True:
            answer = read(request.address) if isinstance(request, Read) else 0
            if isinstance(request, Write):
                write(request.address, request.word)
            request = program.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def read_register(name: str) -> Program[dict[str, int]]:
    """Return a register's fields."""
    word = yield Read(address=BY_NAME[name].address)
    return fields_of(name, word)


def write_register(name: str, **fields: int) -> Program[None]:
    """Write a register; fields left out become 0."""
    yield Write(address=BY_NAME[name].address, word=value_of(name, **fields))


def write_entry(window: str, index: int, entry: int) -> Program[None]:
    """Write one entry of a table (`routes`, `slots`, `descriptors`), its words in order."""
    table = WINDOW_BY_NAME[window]
    for part in range(table.entry_words):
        yield Write(address=table.address_of(index, part), word=entry >> 32 * part & 0xFFFFFFFF)


def start(
    *, node: int, x: int, y: int, last: int, is_counting: bool = True, has_interrupt: bool = False
) -> Program[None]:
    """Find the node, tell it who it is (`last`: the highest number of a node) and let its ring run.

    With `has_interrupt` completions raise it. Raises RunError where something else answers.
    """
    for name, expected in (("identity", IDENTITY), ("version", VERSION)):
        found = yield from read_register(name)
        if found[name] != expected:
            raise RunError(f"got {name} {found[name]:#x} from the node: expected {expected:#x}; is it a node of MCF?")
    yield from write_register("node", id=node, x=x, y=y, last=last)
    yield from write_register("irq_enable", completions=int(has_interrupt))
    yield from write_register("control", enable=1, count=int(is_counting))


def read_errors() -> Program[list[str]]:
    """Return the names of the errors since the last look, and clear them."""
    found = yield from read_register("errors")
    names = [name for name, is_set in found.items() if is_set]
    if names:
        yield from write_register("errors", **dict.fromkeys(names, 1))
    return names


def read_counters() -> Program[dict[str, int]]:
    """Return all counters by name."""
    table = WINDOW_BY_NAME["counters"]
    found: dict[str, int] = {}
    for index, counter in enumerate(COUNTERS):
        low = yield Read(address=table.address_of(index, 0))
        high = yield Read(address=table.address_of(index, 1))
        found[counter.name] = low | high << 32
    return found


@dataclass(kw_only=True)
class Rings:
    """Software's side of both rings: descriptors posted, known to be finished, completions read; modulo twice the size.

    `completed` are the (done_tag, clock) that were read while waiting for room, in order.
    """

    posted: int = 0
    finished: int = 0
    read: int = 0
    completed: list[tuple[int, int]] = field(default_factory=list)

    @property
    def room(self) -> int:
        """Descriptors that surely fit."""
        return NUM_DESCRIPTORS - (self.posted - self.finished) % RING

    def post(self, descriptors: Sequence[int]) -> Program[None]:
        """Write descriptors and ring the doorbell after every few; wait for room.

        Where the ring fills up, the last one before the doorbell gets the tag ROOM_TAG, if it has none: it interrupts.
        """
        for at in range(0, len(descriptors), BATCH):
            batch = list(descriptors[at : at + BATCH])
            yield from self._wait_for_room(len(batch))
            if self.room - len(batch) < NUM_DESCRIPTORS - BATCH and not _done_tag(batch[-1]):
                batch[-1] |= ROOM_TAG << DESCRIPTOR["done_tag"].low
            for word in batch:
                yield from write_entry("descriptors", self.posted % NUM_DESCRIPTORS, word)
                self.posted = (self.posted + 1) % RING
            yield from write_register("ring_tail", tail=self.posted)

    def _wait_for_room(self, wanted: int) -> Program[None]:
        while self.room < wanted:
            self.finished = (yield from read_register("ring_head"))["head"]
            if self.room < wanted:
                yield Wait()
                self.completed += yield from self.completions()

    def completions(self) -> Program[list[tuple[int, int]]]:
        """Return (done_tag, clock) of what has completed since the last look, in order."""
        table = WINDOW_BY_NAME["completions"]
        head = (yield from read_register("done_head"))["head"]
        found: list[tuple[int, int]] = []
        while self.read != head:
            tag = yield Read(address=table.address_of(self.read % NUM_COMPLETIONS, 0))
            clock = yield Read(address=table.address_of(self.read % NUM_COMPLETIONS, 1))
            found.append((tag, clock))
            self.read = (self.read + 1) % (2 * NUM_COMPLETIONS)
        if found:
            yield from write_register("done_tail", tail=self.read)
        return [(tag, clock) for tag, clock in found if tag != ROOM_TAG]


@dataclass(kw_only=True)
class CommandRing:
    """Software's side of the ring of commands for the compute half: how many were written, modulo twice the size."""

    posted: int = 0

    def post(self, commands: Sequence[int]) -> Program[None]:
        """Write commands one by one; where there is no room, look again and again."""
        for word in commands:
            taken = NUM_COMMANDS
            while taken >= NUM_COMMANDS:
                head = (yield from read_register("command_head"))["head"]
                taken = (self.posted - head) % (2 * NUM_COMMANDS)
            yield from write_entry("commands", self.posted % NUM_COMMANDS, word)
            self.posted = (self.posted + 1) % (2 * NUM_COMMANDS)
            yield from write_register("command_tail", tail=self.posted)


def ask_directory(op: KvOp, kv_id: int, *, is_owner: bool = False, base: int = 0) -> Program[tuple[KvCode, int, int]]:
    """Put one operation to the replica directory; its answer: code, where the copy lies, its state."""
    before = (yield from read_register("kv_answer"))["count"]
    yield from write_register("kv_id", kv_id=kv_id)
    yield from write_register("kv_ask", op=op, owner=int(is_owner), base=base)
    answer = yield from read_register("kv_answer")
    while answer["count"] == before:
        answer = yield from read_register("kv_answer")
    return KvCode(answer["code"]), answer["base"], answer["state"]


def _done_tag(descriptor: int) -> int:
    done_tag = DESCRIPTOR["done_tag"]
    return descriptor >> done_tag.low & (1 << done_tag.width) - 1


def write_tables(routes: Mapping[int, int], slots: Mapping[int, int]) -> Program[None]:
    """Write route entries and slots by their numbers."""
    for window, entries in (("routes", routes), ("slots", slots)):
        for index, entry in entries.items():
            yield from write_entry(window, index, entry)
