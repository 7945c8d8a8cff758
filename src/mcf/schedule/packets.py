"""From rows of a schedule to headers on a hardware wire. One table, `schedule.wire`, knows the bits."""

import math
from collections.abc import Iterable

import numpy as np

from mcf.errors import ScheduleError
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import (
    ALL,
    CONVERGE,
    DECODE,
    DRAIN,
    FREE,
    KEEP,
    KIND_NAMES,
    KV,
    PREFILL,
    QUERY,
    SEND,
    STATE,
    Step,
)
from mcf.schedule.wire import RECORD, VERSION, Collective, Flags, Op, Stage

BLOCK_TOKENS = 64  # tokens of a block on the wire: kv_id.block is position // 64
BEAT_BYTES = 16
SEGMENT_BEATS = 64  # so that a receiver's FIFO of 128 beats holds two
STATE_ELEMENT_BYTES = 4

STAGES = {PREFILL: Stage.PREFILL, CONVERGE: Stage.CONVERGE, DECODE: Stage.DECODE}


def headers_of(sched: Schedule, row: int, *, slot: int = 0, position: int | None = None) -> Array:
    """[n] RECORD, the headers of the packets that one send, drain or free row puts on the wire; `hcrc` is left 0.

    One message per (layer, KV head, keys or values, block of 64 tokens); one packet per 64 beats of it, `tag` counts
    them and the last has a flag. `slot` is the request's slot; `position` is the generated token's, for decode rows.
    Raises ScheduleError for a row that sends nothing, for pieces that are not aligned to 64 tokens, and for a decode
    row without a position. Values too large for a field are refused by `pack_many`.
    """
    step = sched.step(row)
    if step.kind not in (SEND, DRAIN, FREE):
        raise ScheduleError(
            f"row {row} is a {KIND_NAMES[step.kind]}: expected a send, drain or free: only they have packets"
        )
    blocks, tokens = blocks_of(sched, step, position)
    out = _messages(sched, step, blocks, halves=2 if _moves_kv(step) else 1)
    out["slot"] = slot
    if step.kind != SEND:
        return out
    per_message = len(out) // len(blocks)
    num_beats = -(-np.tile(tokens, per_message) * token_bytes(sched, step) // BEAT_BYTES)
    return _segments(out, num_beats)


def blocks_of(sched: Schedule, step: Step, position: int | None) -> tuple[Array, Array]:
    """Numbers of the blocks that a row's packets are about, ascending, and the tokens of each; `position` as above."""
    return _tiles(_kv_spans(sched, step) if _moves_kv(step) else _query_spans(sched, step, position))


def _moves_kv(step: Step) -> bool:
    return step.kind != SEND or step.payload == KV


def op_of(step: Step) -> Op:
    """The operation of a row's packets."""
    if step.kind == DRAIN:
        return Op.KV_DRAIN
    if step.kind == FREE:
        return Op.KV_INVALIDATE
    if step.payload == KV:
        return Op.KV_REPLICA if step.hold == KEEP else Op.KV_DATA
    return Op.QUERY if step.payload == QUERY else Op.STATE


def _kv_spans(sched: Schedule, step: Step) -> list[tuple[int, int]]:
    chunks, makers = range(step.c_lo, min(step.c_hi, sched.meta.num_chunks)), range(step.m_lo, step.m_hi)
    return [span for chunk in chunks for maker in makers for span in sched.spans(chunk, maker)]


def _query_spans(sched: Schedule, step: Step, position: int | None) -> list[tuple[int, int]]:
    if step.q != ALL:
        return sched.spans(step.chunk, step.q)
    if position is None:
        raise ScheduleError("a decode row's headers depend on the token: give its position")
    lo = position - position % BLOCK_TOKENS
    return [(lo, lo + 1)]


def _tiles(spans: Iterable[tuple[int, int]]) -> tuple[Array, Array]:
    """Block numbers and the tokens of each, of spans that start on block boundaries."""
    blocks: list[int] = []
    tokens: list[int] = []
    for lo, hi in sorted(spans):
        if lo % BLOCK_TOKENS:
            raise ScheduleError(
                f"piece {lo}:{hi} starts inside a block of {BLOCK_TOKENS} tokens: a schedule for hardware needs pieces "
                f"aligned to {BLOCK_TOKENS}; choose a chunk size that gives every piece a multiple of it"
            )
        starts = range(lo, hi, BLOCK_TOKENS)
        blocks += [start // BLOCK_TOKENS for start in starts]
        tokens += [min(BLOCK_TOKENS, hi - start) for start in starts]
    return np.array(blocks, dtype=np.int64), np.array(tokens, dtype=np.int64)


def _messages(sched: Schedule, step: Step, blocks: Array, *, halves: int) -> Array:
    """One record per (layer, KV head, half, block), in this order."""
    axes = np.meshgrid(
        np.arange(sched.meta.num_layers), np.arange(step.h_lo, step.h_hi), np.arange(halves), blocks, indexing="ij"
    )
    out = np.zeros(axes[0].size, dtype=RECORD)
    for name, values in zip(("layer", "head", "is_v", "block"), axes, strict=True):
        out[name] = values.reshape(-1)
    is_tree = step.kind == SEND and step.dst < 0
    out["ver"], out["stage"], out["op"] = VERSION, STAGES[step.stage], op_of(step)
    out["collective"] = Collective.MULTICAST if is_tree else Collective.P2P
    out["src"] = out["dst_root"] = step.node
    out["dst_node"] = step.dst if step.kind == SEND and not is_tree else step.node
    out["route_id"] = step.route + 1
    out["flags"] = Flags.LAST
    return out


def token_bytes(sched: Schedule, step: Step) -> int:
    """Payload bytes per token of one message: one KV head, keys or values; or the query heads that share a KV head."""
    meta = sched.meta
    if step.payload == KV:
        return math.ceil(meta.head_dim * meta.kv_bytes) + meta.kv_scale_bytes
    if step.payload == QUERY:
        return meta.group_heads * meta.head_dim * meta.act_bytes
    assert step.payload == STATE
    return meta.group_heads * (meta.head_dim + 2) * STATE_ELEMENT_BYTES


def _segments(messages: Array, num_beats: Array) -> Array:
    """Cut each message into packets of at most SEGMENT_BEATS."""
    counts = -(-num_beats // SEGMENT_BEATS)
    out = np.repeat(messages, counts)
    number = np.arange(len(out)) - np.repeat(counts.cumsum() - counts, counts)
    left = np.repeat(num_beats, counts) - number * SEGMENT_BEATS
    out["tag"], out["len"] = number, np.minimum(left, SEGMENT_BEATS)
    out["flags"] = np.where(left <= SEGMENT_BEATS, Flags.LAST, 0)
    return out
