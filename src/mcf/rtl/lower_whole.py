"""Lowering for whole nodes: KV goes as pages out of memory, states go as the records that compute halves make. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mcf.errors import ScheduleError
from mcf.rtl.commands import NUM_SLOTS
from mcf.rtl.embed import own_route
from mcf.rtl.golden.attention import MAX_TOKENS
from mcf.rtl.lower import Lowered, Message, lower
from mcf.rtl.merges import RECORD_BEATS
from mcf.rtl.pages import HEAD_DIM, PAGE_BYTES, SCALE_BYTES, PageMap
from mcf.rtl.routes import Mesh, spread
from mcf.rtl.rows import room_for
from mcf.schedule.meta import INT4_BYTES, ScheduleMeta
from mcf.schedule.packets import BEAT_BYTES
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import ATTEND, DECODE, KV, MERGE, SEND, STATE

GIB = 1 << 30
RECORD_BYTES = RECORD_BEATS * BEAT_BYTES
ROWS_AT_WORK = 4  # whose tiles may be in memory at a time


def lower_whole(sched: Schedule, mesh: Mesh, *, memory_bytes: int) -> Lowered:
    """As `lower`, for whole nodes of `memory_bytes` of memory each. Raises ScheduleError with the limit."""
    for wrong in _wrong(sched.meta, memory_bytes):
        raise ScheduleError(wrong)
    low = lower(sched, mesh)
    own = tuple(own_route(low.embedding, node) for node in range(mesh.num_nodes))
    direct = frozenset(_direct(low))
    joined = {send: _joint_route(low, send) for send in _joined(low, direct)}
    low.embedding.tables.check()
    messages = {row: tuple(_as_it_lies(low, row, one) for one in held) for row, held in low.messages.items()}
    return replace(low, messages=messages, own=own, direct=direct, joined=joined, is_whole=True)


def in_int4(sched: Schedule) -> Schedule:
    """The same schedule with KV as whole nodes keep it: INT4, with scales of 2 bytes."""
    return replace(sched, meta=replace(sched.meta, kv_bytes=INT4_BYTES, kv_scale_bytes=SCALE_BYTES))


def _wrong(meta: ScheduleMeta, memory_bytes: int) -> Iterator[str]:
    if meta.head_dim != HEAD_DIM:
        yield f"got heads of {meta.head_dim}: a whole node holds pages of heads of {HEAD_DIM}; plan for another model"
    if (meta.kv_bytes, meta.kv_scale_bytes) != (INT4_BYTES, SCALE_BYTES):
        yield (
            f"got KV of {meta.kv_bytes} bytes per element with scales of {meta.kv_scale_bytes} bytes: whole nodes keep "
            f"and send INT4, {INT4_BYTES} bytes with scales of {SCALE_BYTES}; plan with kv_bytes = {INT4_BYTES}, "
            f"kv_scale_bytes = {SCALE_BYTES}"
        )
    if meta.group_heads > NUM_SLOTS:
        yield (
            f"got {meta.group_heads} query heads of one KV head: a compute half has {NUM_SLOTS} slots; "
            "plan for another model"
        )
    tokens = meta.prompt_tokens + meta.max_new_tokens
    if tokens > MAX_TOKENS:
        yield f"got {tokens} tokens: a query head adds up at most {MAX_TOKENS}; use a shorter prompt"
    yield from _too_large(meta, tokens, memory_bytes)


def _too_large(meta: ScheduleMeta, tokens: int, memory_bytes: int) -> Iterator[str]:
    pages = PageMap(meta=meta, size_bytes=memory_bytes)
    work = ROWS_AT_WORK * room_for(tokens, meta.chunk_tokens)
    if pages.end + 2 * work > memory_bytes:
        yield (
            f"got {tokens} tokens in {meta.num_layers} layers: {pages.end / GIB:.2f} GiB of pages and "
            f"{2 * work / GIB:.2f} GiB for rows at work on each node, expected at most {memory_bytes / GIB:.2f} GiB; "
            "use a shorter prompt or fewer layers"
        )


def _as_it_lies(low: Lowered, row: int, message: Message) -> Message:
    """A page travels whole, and a state as the records of its query heads."""
    step = low.sched.step(row)
    if step.payload == KV:
        return replace(message, num_bytes=PAGE_BYTES)
    if step.payload == STATE:
        return replace(message, num_bytes=message.num_tokens * low.sched.meta.group_heads * RECORD_BYTES)
    return message


# --- states that go from the compute half to reduction units, without the processor ---


def _users(sched: Schedule) -> Mapping[int, list[int]]:
    """Row -> the sends of states and the merges that stand after it."""
    steps, out = sched.steps, dict[int, list[int]]()
    is_user = (steps["kind"] == MERGE) | ((steps["kind"] == SEND) & (steps["payload"] == STATE))
    for row in is_user.nonzero()[0].tolist():
        for source in sched.after_of(row):
            out.setdefault(int(source), []).append(row)
    return out


def _direct(low: Lowered) -> Iterator[int]:
    """Attends of decode whose state only reduction units need."""
    users, steps = _users(low.sched), low.sched.steps
    ends = {merge.row for merge in low.merges.values()}
    ends |= {row for row in (steps["kind"] == SEND).nonzero()[0].tolist() if row not in low.messages}
    for row in ((steps["kind"] == ATTEND) & (steps["stage"] == DECODE)).nonzero()[0].tolist():
        if users.get(row) and ends.issuperset(users[row]):
            yield row


def _joined(low: Lowered, direct: frozenset[int]) -> Iterator[int]:
    """Sends of a state that goes along one tree to the sender's own units too: the one use, with one child's number."""
    users = _users(low.sched)
    for row in direct:
        merge = low.merges.get(int(low.sched.steps["node"][row]))
        sends = [user for user in users[row] if low.sched.steps["kind"][user] == SEND]
        is_alone = len(sends) == 1 and merge is not None and row in merge.inputs
        if is_alone and len(low.groups(sends[0])) == 1 and low.child[sends[0]] == low.child[row]:
            yield sends[0]


def _joint_route(low: Lowered, send: int) -> int:
    step, mesh, receivers = low.sched.step(send), low.embedding.mesh, low.sched.receivers(send)
    if step.route >= 0 and low.sched.meta.topology == mesh.topology.name:
        edges = low.sched.routes[step.route]
    elif len(receivers) == 1:
        edges = mesh.topology.route(step.node, receivers[0])
    else:
        edges = mesh.topology.multicast(step.node, tuple(receivers))
    return low.embedding.tables.add(spread(mesh, step.node, edges, [*receivers, step.node]))
