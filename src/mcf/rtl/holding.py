"""What a node of a run holds: blocks, queries, partial states, memory in use, whatever its compute half is."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np

from mcf.attn import PartialState, empty
from mcf.errors import RunError
from mcf.rtl.board import Packet
from mcf.rtl.golden.state import BlockState, to_beats
from mcf.rtl.lower import Message
from mcf.rtl.merges import OUT_BEATS
from mcf.rtl.number import Array
from mcf.schedule.memory import reserve_bytes, taken_bytes
from mcf.schedule.packets import BEAT_BYTES, BLOCK_TOKENS
from mcf.schedule.program import GIVE, MemoryEvent, Program
from mcf.schedule.steps import ALL, RECV, Step

Cell = tuple[int, int, int]


class Holding(ABC):
    """One node's side of a run. `held` are the (cell, layer) that are here whole; `queries` (chunk, node, tick) -> [T,
    Hq, d]; `states` (row, tick) -> its partial state over all query heads.
    """

    def __init__(self, program: Program, node: int) -> None:
        self.program, self.sched, self.meta, self.node = program, program.sched, program.sched.meta, node
        self.held: set[tuple[Cell, int]] = set()
        self.queries: dict[tuple[int, int, int], Array] = {}
        self.states: dict[tuple[int, int], PartialState] = {}
        self.taken = taken_bytes(program.sched)
        self.bytes = self.peak = int(reserve_bytes(program.sched)[node])

    # --- what a compute half does in its own way ---

    @abstractmethod
    def ask(self, chunk: int, node: int, tick: int, queries: Array) -> None:
        """Take in queries [T, Hq, d] that this node made."""

    @abstractmethod
    def keep(self, layer: int, positions: Array, keys: Array, values: Array) -> None:
        """Take in what this node makes for itself: keys and values [T, Hkv, d]."""

    @abstractmethod
    def forget(self, cells: Iterable[Cell], layers: Iterable[int]) -> None:
        """Give up copies."""

    @abstractmethod
    def attend(self, index: int, tick: int) -> None:
        """Start a row's attention; the row ends when its state is there."""

    @abstractmethod
    def put(self, row: Step, messages: Sequence[Message], tick: int, source: int) -> list[int]:
        """Make the payload of a send's messages ready, of a state that of row `source`; their addresses."""

    @abstractmethod
    def arrive(self, recv: int, message: Message, tick: int, data: bytes) -> None:
        """Take in the bytes of one message of a posted receive."""

    @abstractmethod
    def put_state(self, source: int, tick: int, child: int) -> list[int]:
        """Make a record of each query head ready for reduction units; their addresses."""

    def make_state(self, source: int, tick: int, child: int) -> None:
        """The descriptors that take the records are posted: make those that are not ready."""
        return

    def record(self, source: int, tick: int, head: int) -> BlockState:
        """One query head's state of a row of decode, as the golden model has it."""
        raise NotImplementedError

    @abstractmethod
    def merged(self, tick: int, head: int, block: BlockState) -> PartialState:
        """The state, over all query heads, that the reduction unit made of one."""

    def receive(self, header: dict[str, int], packet: Packet) -> None:
        """Take in a packet that this node sent to itself."""
        raise RunError(f"node {self.node} received a packet that it had not asked for: {header}")

    def watch(self) -> int:
        """Take in what has left the compute half since the last call; returns how much."""
        return 0

    @property
    def is_busy(self) -> bool:
        """Say whether rows are at work."""
        return False

    @property
    def num_exact(self) -> int:
        """States that left hardware as the golden model says."""
        return 0

    # --- positions ---

    def cell_index(self, cell: Cell) -> tuple[Array, slice]:
        """Positions and KV heads of a block."""
        cuts = self.meta.head_cuts
        return self.program.positions(cell[0], cell[1], 0), slice(cuts[cell[2]], cuts[cell[2] + 1])

    def q_heads(self, row: Step) -> slice:
        """Query heads of a row's KV heads."""
        return slice(row.h_lo * self.meta.group_heads, row.h_hi * self.meta.group_heads)

    def key_positions(self, index: int, tick: int) -> Array:
        """Positions of the keys that a row attends, of generated ones those that are there."""
        row = self.program.rows[index]
        blocks = dict.fromkeys(cell[:2] for cell in self.program.cells[index])
        parts = [np.zeros(0, np.int64), *(self.program.positions(chunk, maker, 0) for chunk, maker in blocks)]
        if row.c_hi > self.meta.num_chunks and row.m_lo <= self.node < row.m_hi:
            tokens = range(tick // self.meta.num_layers + 1)
            parts.append(
                np.array(
                    [self.meta.prompt_tokens + t for t in tokens if self.meta.generated_home(t) == self.node], np.int64
                )
            )
        return np.concatenate(parts)

    def message_rows(self, row: Step, message: Message, tick: int) -> Array:
        """Which of a row's queries a message is about."""
        if row.q == ALL:
            return np.zeros(1, np.int64)
        at = np.arange(message.num_tokens) + message.block * BLOCK_TOKENS
        found: Array = np.searchsorted(self.program.positions(row.chunk, row.q, tick), at)
        return found

    def message_heads(self, message: Message) -> slice:
        """The query heads of a message's KV head."""
        return slice(message.head * self.meta.group_heads, (message.head + 1) * self.meta.group_heads)

    # --- what rows need ---

    def has_blocks(self, cells: Iterable[Cell], layer: int) -> bool:
        """Say whether blocks are here, whole."""
        return all((cell, layer) in self.held for cell in cells)

    def has_queries(self, row: Step, tick: int) -> bool:
        """Say whether the queries of a row are here, whole."""
        values = self.queries.get((row.chunk, row.q, tick))
        return values is not None and not bool(np.isnan(values[:, self.q_heads(row)]).any())

    def has_state(self, row: int, tick: int) -> bool:
        """Say whether a row's state can be sent."""
        return (row, tick) in self.states

    def queries_of(self, row: Step, tick: int) -> Array:
        """Where the queries of a row's node come together, [T, Hq, d]; NaN until they are here."""
        num_rows = len(self.program.positions(row.chunk, row.q, tick))
        shape = (num_rows, self.meta.num_q_heads, self.meta.head_dim)
        return self.queries.setdefault((row.chunk, row.q, tick), np.full(shape, np.nan))

    def state_of(self, index: int, tick: int) -> PartialState:
        """Where the state of a row comes together."""
        row = self.program.rows[index]
        num_rows = len(self.program.positions(row.chunk, row.q, tick))
        return self.states.setdefault((index, tick), empty(num_rows, self.meta.num_q_heads, self.meta.head_dim))

    def pad(self, state: PartialState, heads: slice) -> PartialState:
        """Spread a state of some heads over all; the others have seen nothing."""
        out = empty(len(state.max_), self.meta.num_q_heads, self.meta.head_dim)
        out.max_[:, heads], out.sum_[:, heads], out.out[:, heads] = state.max_, state.sum_, state.out
        return out

    # --- memory in list order ---

    def move(self, event: MemoryEvent) -> None:
        """Count memory taken or given back."""
        size = int(self.taken[event.row])
        is_slot = event.kind == GIVE and self.program.rows[event.row].kind == RECV
        self.bytes += -size if is_slot else size  # of a free, `taken` says what comes back, as a negative number
        self.peak = max(self.peak, self.bytes)


def padded(parts: Iterable[bytes]) -> tuple[bytes, list[int]]:
    """Payloads one behind the other, each in whole beats; where each starts."""
    whole = [part + bytes(-len(part) % BEAT_BYTES) for part in parts]
    starts = np.cumsum([0, *map(len, whole)])[:-1].tolist()
    return b"".join(whole), starts


def record_bytes(blocks: BlockState, row: int, head: int, child: int) -> bytes:
    """The record of one query head of one row."""
    beats = to_beats(only(blocks, row, head), child, OUT_BEATS)
    return b"".join(beat.to_bytes(BEAT_BYTES, "little") for beat in beats)


def only(blocks: BlockState, row: int, head: int) -> BlockState:
    """One query head of one row."""
    exponent, sum_, out, count = (x[row, head] for x in (blocks.exponent, blocks.sum_, blocks.out, blocks.count))
    return BlockState(exponent=exponent, sum_=sum_, out=out, count=count)
