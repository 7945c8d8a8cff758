"""From a verified schedule to what the nodes of a mesh are given: routes, messages, reduction slots. Pure.

A message is what one send moves for one layer, KV head, half (keys or values) and block of 64 tokens; a packet holds at
most 64 beats of it (`mcf.schedule.packets`). States that the network merges are packets of the reduction unit instead,
one for each query head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from mcf.errors import ScheduleError
from mcf.rtl.embed import Embedding, embed, own_route
from mcf.rtl.merges import Merge, children, unit_merges
from mcf.rtl.registers import NUM_SLOTS
from mcf.rtl.room import check_room
from mcf.rtl.routes import Mesh
from mcf.schedule.deadlock import lone_copies
from mcf.schedule.meta import INT4_BYTES, ScheduleMeta
from mcf.schedule.packets import (
    BEAT_BYTES,
    BLOCK_TOKENS,
    blocks_of,
    headers_of,
    token_bytes,
)
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import ALL, DECODE, SEND, STATE
from mcf.schedule.wire import FIELDS

NUM_EPOCHS = 8
MAX_NODES = FIELDS["src"].limit
MAX_BLOCKS = FIELDS["block"].limit
WIRE_BYTES = (2, 4)  # per element: bfloat16 and float32


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message of a send: which part it is, its tokens, payload bytes and beats."""

    head: int
    half: int
    block: int
    num_tokens: int
    num_bytes: int

    @property
    def num_beats(self) -> int:
        """Payload beats, the last one padded."""
        return -(-self.num_bytes // BEAT_BYTES)


@dataclass(frozen=True, kw_only=True, eq=False)
class Lowered:
    """All that the nodes are given. `messages`: of each send row, the same for every layer; none for states that a
    reduction unit merges, whose child numbers are in `child`. `merges`: node -> the merge of its decode template.
    `alone`: sends to several nodes of which each receiver gets a copy of its own as soon as it has posted, since they
    may wait for each other (`mcf.schedule.deadlock.lone_copies`); other multicasts leave when all have posted.
    For whole nodes (`lower_whole`): `direct` are attends whose states only reduction units need; `joined` the sends of
    these that bring them to the sender's own units as well, each with its route.
    """

    sched: Schedule
    embedding: Embedding
    messages: Mapping[int, tuple[Message, ...]]
    merges: Mapping[int, Merge]
    child: Mapping[int, int]
    own: tuple[int, ...] = field(default=())
    alone: frozenset[int] = frozenset()
    direct: frozenset[int] = frozenset()
    joined: Mapping[int, int] = field(default_factory=dict)
    is_whole: bool = False

    def groups(self, row: int) -> list[list[int]]:
        """The receivers of a send, as those that get one packet together."""
        receivers = self.sched.receivers(row)
        return [[node] for node in receivers] if row in self.alone else [receivers]

    def route(self, row: int, to: Sequence[int]) -> int:
        """The route of a send, or of its copy to one receiver."""
        if row in self.joined:
            return self.joined[row]
        if list(to) == self.sched.receivers(row):
            return self.embedding.of_send[row]
        return self.embedding.of_pair[int(self.sched.steps["node"][row]), to[0]]

    @property
    def slots_per_tick(self) -> int:
        """Reduction slots that one layer of a token takes: one for each query head."""
        return self.sched.meta.num_q_heads

    def slot(self, tick: int, q_head: int) -> int:
        """The header's tag, slot and epoch, of one query head's state in one layer of a token."""
        sets = NUM_SLOTS // self.slots_per_tick
        return (tick % sets) * self.slots_per_tick + q_head | (tick // sets % NUM_EPOCHS) << NUM_SLOTS.bit_length() - 1


def lower(sched: Schedule, mesh: Mesh) -> Lowered:
    """Lower a schedule that `verify` has passed to a mesh.

    Raises ScheduleError naming the limit and by how much it is exceeded: nodes that the header cannot name, pieces that
    are not aligned to 64 tokens, routes, entries of the replica directory, reduction slots, children of a merge, the
    head size, bytes per element.
    """
    _check_sizes(sched)
    check_room(sched)
    embedding = embed(sched, mesh)
    merges = unit_merges(sched)
    own = tuple(own_route(embedding, node) for node in range(mesh.num_nodes)) if merges else ()
    embedding.tables.check()
    sends = (sched.steps["kind"] == SEND).nonzero()[0].tolist()
    messages = {row: tuple(_messages(sched, row)) for row in sends if not _is_merged(sched, merges, row)}
    return Lowered(
        sched=sched,
        embedding=embedding,
        messages=messages,
        merges=merges,
        child=children(sched, merges),
        own=own,
        alone=lone_copies(sched),
    )


def _check_sizes(sched: Schedule) -> None:
    meta = sched.meta
    if meta.num_nodes > MAX_NODES:
        raise ScheduleError(
            f"got {meta.num_nodes} nodes: the packet header can name {MAX_NODES}, {meta.num_nodes - MAX_NODES} fewer; "
            "plan for fewer nodes"
        )
    for name, limit in (("num_layers", FIELDS["layer"].limit), ("num_kv_heads", FIELDS["head"].limit)):
        if getattr(meta, name) > limit:
            over = getattr(meta, name) - limit
            raise ScheduleError(
                f"got {name} = {getattr(meta, name)}: the packet header can name {limit}, {over} fewer; "
                "plan for another model"
            )
    blocks = -(-(meta.prompt_tokens + meta.max_new_tokens) // BLOCK_TOKENS)
    if blocks > MAX_BLOCKS:
        raise ScheduleError(
            f"got {blocks * BLOCK_TOKENS:,} tokens with those to generate: the packet header can name {MAX_BLOCKS:,} "
            f"blocks of {BLOCK_TOKENS}, {blocks - MAX_BLOCKS:,} fewer; plan for a shorter prompt"
        )
    _check_types(meta)
    for piece in sched.pieces:
        if piece["lo"] % BLOCK_TOKENS:
            raise ScheduleError(
                f"got piece {piece['lo']}:{piece['hi']}, {piece['lo'] % BLOCK_TOKENS} tokens behind a block's start: "
                f"expected pieces aligned to {BLOCK_TOKENS} tokens; choose a chunk size for that"
            )


def _check_types(meta: ScheduleMeta) -> None:
    is_int4 = meta.kv_bytes == INT4_BYTES
    if not is_int4 and meta.kv_bytes not in WIRE_BYTES:
        raise ScheduleError(
            f"got kv_bytes = {meta.kv_bytes}: expected 0.5 (INT4), 2 (bfloat16) or 4 (float32) bytes per element; "
            "plan with another dtype"
        )
    if meta.act_bytes not in WIRE_BYTES:
        raise ScheduleError(
            f"got act_bytes = {meta.act_bytes}: expected 2 (bfloat16) or 4 (float32) bytes per element; "
            "plan with another dtype"
        )
    if is_int4 != (meta.kv_scale_bytes in WIRE_BYTES):
        raise ScheduleError(
            f"got KV of {meta.kv_bytes} bytes per element with scales of {meta.kv_scale_bytes} bytes: "
            "expected scales of 2 or 4 bytes with INT4, and none with bfloat16 or float32"
        )


# --- messages ---


def _messages(sched: Schedule, row: int) -> Iterator[Message]:
    """The messages of one layer, in the order of `headers_of`, of whose packets they are the sums."""
    step = sched.step(row)
    position = sched.meta.prompt_tokens if step.q == ALL else None
    packets = headers_of(sched, row, position=position)
    packets = packets[packets["layer"] == 0]
    tokens = dict(zip(*(part.tolist() for part in blocks_of(sched, step, position)), strict=True))
    starts = np.flatnonzero(packets["tag"] == 0).tolist()
    for first, end in pairwise([*starts, len(packets)]):
        head, half, block = (int(packets[name][first]) for name in ("head", "is_v", "block"))
        num_bytes = tokens[block] * token_bytes(sched, step)
        assert -(-num_bytes // BEAT_BYTES) == packets["len"][first:end].sum(), (row, block)
        yield Message(head=head, half=half, block=block, num_tokens=tokens[block], num_bytes=num_bytes)


def _is_merged(sched: Schedule, merges: Mapping[int, Merge], row: int) -> bool:
    step = sched.step(row)
    return bool(merges) and step.payload == STATE and step.stage == DECODE
