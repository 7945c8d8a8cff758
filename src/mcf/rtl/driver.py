"""The driver: what software does with a node's registers, as programs that ask for reads and writes and know no bus.

A program is a generator: it yields a `Read` or a `Write` and is sent the word that was read. `obey` runs one on a bus
of two functions; a simulator drives the same programs over its own.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcf.errors import RunError
from mcf.rtl.registers import (
    BY_NAME,
    COUNTERS,
    IDENTITY,
    NUM_COMPLETIONS,
    NUM_DESCRIPTORS,
    VERSION,
    WINDOW_BY_NAME,
    fields_of,
    value_of,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Read:
    """One 32-bit read at a byte address."""

    address: int


@dataclass(frozen=True, kw_only=True)
class Write:
    """One 32-bit write at a byte address."""

    address: int
    word: int


Program = Generator[Read | Write, int, T]


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


def start(*, node: int, x: int, y: int, is_counting: bool = True) -> Program[None]:
    """Find the node, tell it who it is and let its ring run. Raises RunError where something else answers."""
    for name, expected in (("identity", IDENTITY), ("version", VERSION)):
        found = yield from read_register(name)
        if found[name] != expected:
            raise RunError(f"got {name} {found[name]:#x} from the node: expected {expected:#x}; is it a node of MCF?")
    yield from write_register("node", id=node, x=x, y=y)
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
    """Software's side of both rings: descriptors posted and completions read so far, modulo twice the size."""

    posted: int = 0
    read: int = 0

    def post(self, descriptors: Sequence[int]) -> Program[None]:
        """Write descriptors, waiting for room, and ring the doorbell after each."""
        for word in descriptors:
            yield from self._wait_for_room()
            yield from write_entry("descriptors", self.posted % NUM_DESCRIPTORS, word)
            self.posted = (self.posted + 1) % (2 * NUM_DESCRIPTORS)
            yield from write_register("ring_tail", tail=self.posted)

    def _wait_for_room(self) -> Program[None]:
        outstanding = NUM_DESCRIPTORS
        while outstanding >= NUM_DESCRIPTORS:
            head = (yield from read_register("ring_head"))["head"]
            outstanding = (self.posted - head) % (2 * NUM_DESCRIPTORS)

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
        return found


def write_tables(routes: Mapping[int, int], slots: Mapping[int, int]) -> Program[None]:
    """Write route entries and slots by their numbers."""
    for window, entries in (("routes", routes), ("slots", slots)):
        for index, entry in entries.items():
            yield from write_entry(window, index, entry)
