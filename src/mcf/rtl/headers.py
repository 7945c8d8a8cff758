"""From lowered sends to headers and descriptors: equal steps become one descriptor's loop. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from mcf.rtl.descriptor import FIELDS as DESCRIPTOR
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.lower import Lowered, Message
from mcf.rtl.merges import RECORD_BEATS
from mcf.schedule.packets import BEAT_BYTES, SEGMENT_BEATS, STAGES, op_of
from mcf.schedule.wire import Collective, Flags, Op, ReduceOp, Stage

# What every header of a decode state on its way to a reduction unit says.
STATE_TO_MERGE: Mapping[str, int] = {
    "stage": Stage.DECODE,
    "op": Op.STATE,
    "collective": Collective.REDUCE,
    "reduce_op": ReduceOp.MERGE,
    "flags": Flags.LAST,
    "len": RECORD_BEATS,
}


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


# --- descriptors ---


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
