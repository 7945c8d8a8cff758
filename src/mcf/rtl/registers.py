"""The register map: what software sees of a node over AXI4-Lite. Hardware, documents and driver derive from `MAP`.

All accesses are 32 bits wide, with all byte strobes. An access to an address that is not listed, a write to what is
read only and a partial write answer SLVERR and change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mcf.rtl.commands import COMMAND_BITS
from mcf.rtl.descriptor import DESCRIPTOR_WORDS
from mcf.rtl.entry import NUM_ROUTES, Port

ADDRESS_BITS = 16
IDENTITY = 0x3146434D  # "MCF1" as bytes
VERSION = 1

NUM_DESCRIPTORS = 64
NUM_COMPLETIONS = 64
NUM_SLOTS = 32
NUM_COMMANDS = 16
PORTS = tuple(port.name.lower() for port in Port)


class Access(Enum):
    """What software may do with a register or window."""

    CONSTANT = "constant"
    READ = "read"  # hardware's value, as it is
    READ_WRITE = "read, write"
    CLEAR = "read, write 1 to clear"  # hardware sets a bit, software clears it
    STROBE = "write"  # each write hands one value to hardware
    WINDOW_WRITE = "write window"
    WINDOW_READ = "read window"


@dataclass(frozen=True, kw_only=True)
class Field:
    """`width` bits from bit `low` on."""

    name: str
    low: int
    width: int
    meaning: str


@dataclass(frozen=True, kw_only=True)
class Register:
    """One 32-bit word at a byte address; `value` is what a constant reads, else what reset leaves."""

    name: str
    address: int
    access: Access
    fields: tuple[Field, ...]
    value: int = 0

    @property
    def width(self) -> int:
        """Bits up to the highest field's end."""
        return max(field.low + field.width for field in self.fields)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A table of `num_entries` entries of `entry_words` words. An entry's words start `stride_words` apart.

    Where `is_whole`, a written entry takes effect with its last word: its words are written in order, and no other
    entry's between them. Else each word stands for itself.
    """

    name: str
    address: int
    access: Access
    num_entries: int
    entry_words: int
    width: int  # bits of an entry that have a meaning
    meaning: str
    is_whole: bool = False

    @property
    def stride_words(self) -> int:
        """Words from one entry to the next: a power of two."""
        return 1 << (self.entry_words - 1).bit_length()

    @property
    def num_words(self) -> int:
        """Words of the whole window."""
        return self.num_entries * self.stride_words

    def address_of(self, index: int, word: int = 0) -> int:
        """The byte address of one word of an entry."""
        assert 0 <= index < self.num_entries
        assert 0 <= word < self.entry_words
        return self.address + 4 * (index * self.stride_words + word)


def _register(name: str, address: int, access: Access, *rows: tuple[str, int, str], value: int = 0) -> Register:
    """A register whose fields (name, width, meaning) follow each other from bit 0 on."""
    lows = [sum(width for _, width, _ in rows[:i]) for i in range(len(rows))]
    fields = [Field(name=key, low=low, width=width, meaning=m) for low, (key, width, m) in zip(lows, rows, strict=True)]
    return Register(name=name, address=address, access=access, fields=tuple(fields), value=value)


@dataclass(frozen=True, kw_only=True)
class Counter:
    """One counter; at most `most` things can happen in a cycle."""

    name: str
    meaning: str
    most: int

    @property
    def width(self) -> int:
        """Bits of what is added in a cycle."""
        return self.most.bit_length()


# Bits of `errors` and of the hardware port of that name, in order.
ERRORS: tuple[tuple[str, str], ...] = (
    ("dropped", "a packet was dropped: bad header, wrong port, no route, wrong length, or an unknown operation"),
    ("descriptor", "a descriptor with payload beats and len = 0, or an address off the beat, was skipped"),
    ("event", "an event was set with 15 of it pending: the set was lost"),
    ("completion", "a completion was lost: the ring of completions was full"),
    ("kv_refused", "the directory refused an operation"),
    ("reduce_refused", "a state packet that fits no slot was dropped, or a slot's set-up was refused"),
    ("link", "a link gave up or saw a damaged word"),
    ("memory", "memory answered the compute half or a packet's payload with an error: what was read is wrong"),
)

# The counters of a node, in the order of the window and of `Perf`'s input: name, meaning, most per cycle.
_COUNTS: tuple[tuple[str, str, int], ...] = (
    ("cycles", "clock cycles while `control.count` is 1", 1),
    *((f"beats_{port}", f"beats that left through the {port} output", 1) for port in PORTS),
    *((f"stalls_{port}", f"cycles in which a beat waited at the {port} output", 1) for port in PORTS),
    ("granted", "packets that the router let through", 1),
    ("dropped_header", "packets dropped: bad hcrc or version", 1),
    ("dropped_route", "packets dropped: the route is not valid here", 1),
    ("dropped_port", "packets dropped: not the port that the route expects", 1),
    ("dropped_length", "packets dropped: not as long as the header says", 6),
    ("dropped_operation", "packets dropped on arrival: an operation without a name", 1),
    ("dropped_payload", "packets dropped before they left: their payload had another length", 1),
    ("dropped_state", "state packets dropped: no such slot, child or length", 1),
    ("refused_slot", "set-ups of slots refused: in use, or impossible", 1),
    ("descriptors_bad", "descriptors skipped, as in `errors`", 1),
    ("sent", "packets that this node put on the network, merged states too", 2),
    ("received", "packets that arrived for this node", 1),
    ("beats_kv", "beats that arrived for the compute half, headers too", 1),
    ("beats_state", "beats that arrived for the reduction", 1),
    ("beats_control", "beats of control packets that arrived", 1),
    ("merged", "merged states that left the reduction", 1),
    ("kv_done", "operations that the directory carried out", 1),
    ("kv_refused", "operations that the directory refused", 1),
    ("descriptors", "descriptors that the ring has finished", 1),
    ("waits", "cycles in which the ring waited for an event", 1),
    ("starved", "cycles in which a packet waited for its payload", 1),
    ("link_bad", "link words dropped: damaged or out of sequence", 4),
    ("link_resent", "link words sent again", 4),
)
COUNTERS: tuple[Counter, ...] = tuple(Counter(name=n, meaning=text, most=most) for n, text, most in _COUNTS)
COUNTER_BITS = 48
# Counters of cycles; they rest with `control.count` 0, so that a node in which nothing moves changes nothing.
CYCLE_COUNTERS = ("cycles", "waits", "starved", *(f"stalls_{port}" for port in PORTS))

REGISTERS: tuple[Register, ...] = (
    _register("identity", 0x0000, Access.CONSTANT, ("identity", 32, "the bytes MCF1"), value=IDENTITY),
    _register("version", 0x0004, Access.CONSTANT, ("version", 32, "of this map"), value=VERSION),
    _register(
        *("sizes", 0x0008, Access.CONSTANT),
        ("descriptors", 8, "entries of the ring"),
        ("completions", 8, "entries of the ring of completions"),
        ("slots", 8, "reduction slots"),
        value=NUM_DESCRIPTORS | NUM_COMPLETIONS << 8 | NUM_SLOTS << 16,
    ),
    _register(
        *("control", 0x000C, Access.READ_WRITE),
        ("enable", 1, "1: the ring takes descriptors"),
        ("count", 1, "1: the clock and the counters of cycles (`cycles`, `waits`, `starved`, `stalls_`) count"),
    ),
    _register(
        *("status", 0x0010, Access.READ),
        ("busy", 1, "1: a descriptor is at work"),
        ("waiting", 1, "1: it waits for an event"),
        ("clearing", 1, "1: events and counters are being cleared"),
        ("event", 8, "the event that it waits for"),
    ),
    _register("errors", 0x0014, Access.CLEAR, *((name, 1, meaning) for name, meaning in ERRORS)),
    _register(
        *("irq_enable", 0x0018, Access.READ_WRITE),
        ("errors", 1, "1: an error raises the interrupt"),
        ("completions", 1, "1: completions raise it, as `irq_coalesce` says"),
    ),
    _register("clear", 0x001C, Access.STROBE, ("clear", 1, "1: forget all events and counters; takes 256 cycles")),
    _register("ring_head", 0x0100, Access.READ, ("head", 7, "descriptors finished so far, modulo 128")),
    _register(
        *("ring_tail", 0x0104, Access.READ_WRITE),
        ("tail", 7, "descriptors written so far, modulo 128: writing it is the doorbell"),
    ),
    _register(
        *("irq_coalesce", 0x0108, Access.READ_WRITE),
        ("count", 7, "completions that wait before the interrupt is raised; 0 is as 1"),
        value=1,
    ),
    _register("done_head", 0x0110, Access.READ, ("head", 7, "completions written so far, modulo 128")),
    _register(
        *("done_tail", 0x0114, Access.READ_WRITE),
        ("tail", 7, "completions read so far, modulo 128: software's to write"),
    ),
    _register("command_head", 0x0120, Access.READ, ("head", 5, "commands of the compute half taken so far, modulo 32")),
    _register(
        *("command_tail", 0x0124, Access.READ_WRITE),
        ("tail", 5, "commands written so far, modulo 32: writing it is the doorbell"),
    ),
    _register("computing", 0x0128, Access.READ, ("busy", 1, "1: some command that was taken is not done")),
    _register(
        *("node", 0x0200, Access.READ_WRITE),
        ("id", 10, "this node's number, `src` of what it sends"),
        ("x", 5, "column in the mesh"),
        ("y", 5, "row in the mesh"),
        ("last", 10, "the highest number of a node, for ALL_TO_ALL"),
    ),
    _register("clock", 0x0204, Access.READ, ("cycles", 32, "clock cycles while `control.count` is 1, modulo 2^32")),
    _register(
        *("barrier", 0x0208, Access.READ_WRITE),
        ("peers", 10, "BARRIER packets of one epoch that complete it"),
        ("event", 8, "the event that is set then"),
    ),
    _register("set_event", 0x020C, Access.STROBE, ("event", 8, "an event to set")),
    _register("slots_armed", 0x0210, Access.READ, ("armed", NUM_SLOTS, "a bit for each reduction slot in use")),
    _register("kv_id", 0x0300, Access.READ_WRITE, ("kv_id", 32, "the copy that `kv_ask` is about")),
    _register(
        *("kv_ask", 0x0304, Access.STROBE),
        ("op", 4, "what to ask the replica directory; one at a time: the next when `kv_answer.count` has moved"),
        ("owner", 1, "1: the copy is the owner's"),
        ("base", 16, "where the copy lies"),
    ),
    _register(
        *("kv_answer", 0x0308, Access.READ),
        ("op", 4, "the last answer to `kv_ask`: what was asked"),
        ("code", 3, "0 to 2: done; else refused"),
        ("base", 16, "where the copy lies"),
        ("state", 3, "the copy's state afterwards"),
        ("count", 4, "answers so far, modulo 16"),
    ),
)

WINDOWS: tuple[Window, ...] = (
    Window(
        name="descriptors",
        address=0x1000,
        access=Access.WINDOW_WRITE,
        num_entries=NUM_DESCRIPTORS,
        entry_words=DESCRIPTOR_WORDS,
        width=256,
        meaning="the ring; see the descriptor's table",
    ),
    Window(
        name="completions",
        address=0x2000,
        access=Access.WINDOW_READ,
        num_entries=NUM_COMPLETIONS,
        entry_words=2,
        width=64,
        meaning="word 0: done_tag; word 1: the clock when the last packet had left",
    ),
    Window(
        name="routes",
        address=0x4000,
        access=Access.WINDOW_WRITE,
        num_entries=NUM_ROUTES,
        entry_words=1,
        width=16,
        meaning="out_mask 5, expected in-port 3, parent port 3, children 4, valid 1",
        is_whole=True,
    ),
    Window(
        name="slots",
        address=0x6000,
        access=Access.WINDOW_WRITE,
        num_entries=NUM_SLOTS,
        entry_words=5,
        width=145,
        meaning="header of the result 128, tag 8, children 5, place among the parent's children 4",
        is_whole=True,
    ),
    Window(
        name="commands",
        address=0x7000,
        access=Access.WINDOW_WRITE,
        num_entries=NUM_COMMANDS,
        entry_words=COMMAND_BITS // 32,
        width=COMMAND_BITS,
        meaning="the ring of the compute half; see the command's table",
    ),
    Window(
        name="counters",
        address=0xC000,
        access=Access.WINDOW_READ,
        num_entries=len(COUNTERS),
        entry_words=2,
        width=64,
        meaning="word 0: low 32 bits, which keeps the high ones of the same moment for word 1",
    ),
)

BY_NAME: Mapping[str, Register] = {register.name: register for register in REGISTERS}
WINDOW_BY_NAME: Mapping[str, Window] = {window.name: window for window in WINDOWS}
COUNTER_INDEX: Mapping[str, int] = {counter.name: index for index, counter in enumerate(COUNTERS)}


def value_of(name: str, **fields: int) -> int:
    """A register's word from its fields; those left out are 0."""
    layout = {field.name: field for field in BY_NAME[name].fields}
    assert all(0 <= value < 1 << layout[key].width for key, value in fields.items()), (name, fields)
    return sum(value << layout[key].low for key, value in fields.items())


def fields_of(name: str, word: int) -> dict[str, int]:
    """A register's fields from its word."""
    return {field.name: word >> field.low & (1 << field.width) - 1 for field in BY_NAME[name].fields}


def markdown() -> str:
    """The map for the documents: registers, windows, errors and counters."""
    parts = [
        "| address | register | access | bits | field | meaning |\n|---|---|---|---|---|---|",
        *(_register_lines(register) for register in REGISTERS),
        "\n| address | window | access | entries x words | an entry |\n|---|---|---|---|---|",
        *(
            f"| {w.address:#06x} | `{w.name}` | {w.access.value} | {w.num_entries} x {w.stride_words} | {w.meaning} |"
            for w in WINDOWS
        ),
        "\n| # | counter | counts |\n|---|---|---|",
        *(f"| {index} | `{c.name}` | {c.meaning} |" for index, c in enumerate(COUNTERS)),
    ]
    return "\n".join(parts) + "\n"


def _register_lines(register: Register) -> str:
    head = f"| {register.address:#06x} | `{register.name}` | {register.access.value} |"
    lines = [f" {f.low + f.width - 1}:{f.low} | `{f.name}` | {f.meaning} |" for f in register.fields]
    return "\n".join((head if i == 0 else "| | | |") + line for i, line in enumerate(lines))
