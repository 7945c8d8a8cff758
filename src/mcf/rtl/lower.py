"""From a verified schedule to what the nodes of a mesh are given: routes, messages, descriptors, reduction slots. Pure.

A message is what one send moves for one layer, KV head, half (keys or values) and block of 64 tokens; a packet holds at
most 64 beats of it (`mcf.schedule.packets`). States that the network merges are packets of the reduction unit instead,
one for each query head.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from mcf.errors import ScheduleError
from mcf.rtl.descriptor import FIELDS as DESCRIPTOR
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.embed import Embedding, embed, own_route
from mcf.rtl.golden.state import LANES, MAX_CHILDREN
from mcf.rtl.registers import NUM_SLOTS
from mcf.rtl.room import check_room
from mcf.rtl.routes import Mesh
from mcf.schedule.deadlock import lone_copies
from mcf.schedule.meta import INT4_BYTES, ScheduleMeta
from mcf.schedule.packets import (
    BEAT_BYTES,
    BLOCK_TOKENS,
    SEGMENT_BEATS,
    STAGES,
    blocks_of,
    headers_of,
    op_of,
    token_bytes,
)
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import ALL, ATTEND, DECODE, KIND_NAMES, MERGE, RECV, SEND, STATE
from mcf.schedule.wire import FIELDS, Collective, Flags, Op, ReduceOp, Stage

NUM_EPOCHS = 8
OUT_BEATS = 16  # of a state in the reduction unit: a head size of at most 128
MAX_NODES = FIELDS["src"].limit
MAX_BLOCKS = FIELDS["block"].limit
# What every header of a decode state on its way to a reduction unit says.
STATE_TO_MERGE: Mapping[str, int] = {
    "stage": Stage.DECODE,
    "op": Op.STATE,
    "collective": Collective.REDUCE,
    "reduce_op": ReduceOp.MERGE,
    "flags": Flags.LAST,
    "len": 1 + OUT_BEATS,
}
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


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A merge that a reduction unit does: its row, and the rows whose states it merges, in order: the children."""

    row: int
    inputs: tuple[int, ...]


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
    merges = _unit_merges(sched)
    own = tuple(own_route(embedding, node) for node in range(mesh.num_nodes)) if merges else ()
    embedding.tables.check()
    sends = (sched.steps["kind"] == SEND).nonzero()[0].tolist()
    messages = {row: tuple(_messages(sched, row)) for row in sends if not _is_merged(sched, merges, row)}
    return Lowered(
        sched=sched,
        embedding=embedding,
        messages=messages,
        merges=merges,
        child=_children(sched, merges),
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


def header_of(low: Lowered, row: int, message: Message, *, layer: int, to: Sequence[int]) -> dict[str, int]:
    """The header of a message's first packet to one of `Lowered.groups`, `len` the most beats of a packet."""
    step = low.sched.step(row)
    return {
        "stage": STAGES[step.stage],
        "op": op_of(step),
        "collective": Collective.P2P if len(to) == 1 else Collective.MULTICAST,
        "flags": Flags.LAST if message.num_beats <= SEGMENT_BEATS else 0,
        "src": step.node,
        "dst_node": to[0] if len(to) == 1 else step.node,
        "dst_root": step.node,
        "route_id": low.route(row, to),
        "layer": layer,
        "head": message.head,
        "is_v": message.half,
        "block": message.block,
        "len": min(message.num_beats, SEGMENT_BEATS),
    }


def descriptors(
    headers: Sequence[Mapping[str, int]], beats: Sequence[int], addresses: int | Sequence[int]
) -> Iterator[int]:
    """Pack messages with payloads at `addresses`, or one behind the other from an address on; equal steps become one
    descriptor's loop.
    """
    if isinstance(addresses, int):
        starts = accumulate(beats, initial=0)
        addresses = [addresses + start * BEAT_BYTES for start, _ in zip(starts, beats, strict=False)]
    at = 0
    while at < len(headers):
        count, half, head, beats_on = _loop(headers, beats, addresses, at)
        yield pack_descriptor(
            headers[at],
            address=addresses[at],
            beats=beats[at],
            repeat=count - 1,
            step_address=beats_on,
            step_half=half,
            step_head=head,
        )
        at += count


_Steps = tuple[int, int, int]  # by what {block, is_v}, head and address move
_STEPS = tuple(DESCRIPTOR[name].span for name in ("step_half", "step_head", "step_address"))


def _loop(
    headers: Sequence[Mapping[str, int]], beats: Sequence[int], addresses: Sequence[int], at: int
) -> tuple[int, int, int, int]:
    """How many messages from `at` on are one loop, and its steps."""
    alone = (1, 0, 0, beats[at])
    steps = _step(headers, addresses, at) if at + 1 < len(headers) else (0, 0, 0)
    if any(step not in span for step, span in zip(steps, _STEPS, strict=True)):
        return alone
    count = 1
    while (
        at + count < len(headers)
        and beats[at + count] == beats[at]
        and _step(headers, addresses, at + count - 1) == steps
        and count < DESCRIPTOR["repeat"].span.stop
        and _rest(headers[at + count]) == _rest(headers[at])
    ):
        count += 1
    return (count, *steps) if count > 1 else alone


def _step(headers: Sequence[Mapping[str, int]], addresses: Sequence[int], at: int) -> _Steps:
    a, b = headers[at], headers[at + 1]
    half = (b["block"] - a["block"]) * 2 + b["is_v"] - a["is_v"]
    return half, b["head"] - a["head"], (addresses[at + 1] - addresses[at]) // BEAT_BYTES


def _rest(header: Mapping[str, int]) -> dict[str, int]:
    return {name: value for name, value in header.items() if name not in ("block", "is_v", "head")}


# --- reduction ---


def _unit_merges(sched: Schedule) -> dict[int, Merge]:
    """Node -> its decode merge, where states of other nodes meet; they are merged by the reduction unit."""
    steps, out = sched.steps, {}
    for row in ((steps["kind"] == MERGE) & (steps["stage"] == DECODE)).nonzero()[0].tolist():
        inputs = tuple(sched.after_of(row))
        if not any(steps["kind"][i] == RECV for i in inputs):
            continue
        if int(steps["node"][row]) in out:
            raise ScheduleError(
                f"got two merges of states in decode on node {steps['node'][row]} (row {row} is the second): expected "
                "one a token; merge all states at once"
            )
        out[int(steps["node"][row])] = Merge(row=row, inputs=inputs)
    if out:
        _check_merges(sched, out)
    return out


def _check_merges(sched: Schedule, merges: Mapping[int, Merge]) -> None:
    meta = sched.meta
    for node, merge in merges.items():
        if len(merge.inputs) > MAX_CHILDREN:
            raise ScheduleError(
                f"got a merge of {len(merge.inputs)} states on node {node}: a reduction slot takes {MAX_CHILDREN}, "
                f"{len(merge.inputs) - MAX_CHILDREN} fewer; use fewer nodes"
            )
        for row in merge.inputs:
            if (kind := sched.steps["kind"][row]) not in (RECV, ATTEND):
                raise ScheduleError(
                    f"got a merge in decode on node {node} of row {row}, a {KIND_NAMES[kind]}: expected attends and "
                    "received states alone; merge all states at once"
                )
    if meta.num_q_heads > NUM_SLOTS:
        raise ScheduleError(
            f"got {meta.num_q_heads} query heads, as many states per token: a node has {NUM_SLOTS} reduction slots, "
            f"{meta.num_q_heads - NUM_SLOTS} fewer; plan for another model"
        )
    if meta.head_dim > (most := OUT_BEATS * LANES):
        raise ScheduleError(
            f"got a head size of {meta.head_dim}: a state packet holds {most}, {meta.head_dim - most} fewer; "
            "plan for another model"
        )


def _children(sched: Schedule, merges: Mapping[int, Merge]) -> dict[int, int]:
    """Row of an attend or of a state's send -> which child it is; the same at each receiver."""
    out: dict[int, int] = {}
    for merge in merges.values():
        for number, row in enumerate(merge.inputs):
            source = int(sched.steps["ref"][row]) if sched.steps["kind"][row] == RECV else row
            if out.setdefault(source, number) != number:
                raise ScheduleError(
                    f"got a state (row {source}) that is input {out[source]} of one merge and {number} of another: "
                    "expected the same place at each; name the inputs of all merges in one order"
                )
    return out


def _is_merged(sched: Schedule, merges: Mapping[int, Merge], row: int) -> bool:
    step = sched.step(row)
    return bool(merges) and step.payload == STATE and step.stage == DECODE


def state_header(low: Lowered, row: int, *, tick: int, q_head: int, to: Sequence[int]) -> dict[str, int]:
    """The header of one query head's state on its way to the reduction units of a send's receivers, or to one's own,
    where `to` is empty.
    """
    sched, step = low.sched, low.sched.step(row)
    return {
        **STATE_TO_MERGE,
        "src": step.node,
        "dst_node": to[0] if len(to) == 1 else step.node,
        "dst_root": step.node,
        "route_id": low.route(row, to) if to else low.own[step.node],
        "layer": tick % sched.meta.num_layers,
        "head": q_head // sched.meta.group_heads,
        "block": 0,
        "tag": low.slot(tick, q_head),
    }


def result_header(low: Lowered, node: int, *, tick: int, q_head: int) -> dict[str, int]:
    """The header under which a merged state comes back to the node's own compute half."""
    header = state_header(low, low.merges[node].row, tick=tick, q_head=q_head, to=())
    return header | {"op": Op.REDUCE_RESULT, "collective": Collective.P2P, "block": q_head}
