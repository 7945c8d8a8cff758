"""Entries of the replica directory: which a block has, and whether there is room for all that a schedule keeps."""

from collections import Counter
from collections.abc import Iterator

from mcf.errors import ScheduleError
from mcf.rtl.kv_ops import WAYS, set_of
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import FREE, KEEP, KV, PRODUCE, RECV, Step
from mcf.schedule.wire import FIELDS

NUM_ENTRIES = 256  # of a node's directory
_SET_BITS = (NUM_ENTRIES // WAYS).bit_length() - 1
_LOW = FIELDS["slot"].low

Cell = tuple[int, int, int]


def blocks_of_cell(sched: Schedule, cell: Cell) -> list[int]:
    """The blocks of 64 tokens, counted through the prompt, of (chunk, maker, head group)."""
    spans = sched.spans(cell[0], cell[1])
    return [lo // BLOCK_TOKENS for start, hi in spans for lo in range(start, hi, BLOCK_TOKENS)]


def kv_id(sched: Schedule, group: int, layer: int, block: int) -> int:
    """The entry's name: the header's kv_id with the group's first KV head."""
    values = {"layer": layer, "head": sched.meta.head_cuts[group], "block": block}
    return sum(value << FIELDS[name].low - _LOW for name, value in values.items())


def check_room(sched: Schedule) -> None:
    """Refuse a schedule whose nodes keep more blocks at once, in list order, than a set of the directory holds.

    Copies in layer slots come on top; where they find no room the run says so. Raises ScheduleError.
    """
    most, node = _fullest_set(sched)
    if most > WAYS:
        raise ScheduleError(
            f"got {most} blocks of {BLOCK_TOKENS} tokens that node {node} keeps at once in one set of its replica "
            f"directory: a set has {WAYS} entries ({NUM_ENTRIES} in all), {most - WAYS} fewer; use more nodes, a "
            "shorter prompt or fewer copies"
        )


def _fullest_set(sched: Schedule) -> tuple[int, int]:
    """The most entries that one set has at once, and the node whose set it is."""
    sets: Counter[tuple[int, int]] = Counter()
    most = (0, 0)
    for row in sched.steps.tolist():
        step = Step(*row)
        change = _change(step)
        for group, block in _entries(sched, step) if change else ():
            number = step.node, set_of(kv_id(sched, group, 0, block), _SET_BITS)
            sets[number] += change
            most = max(most, (sets[number], step.node))
    return most


def _change(step: Step) -> int:
    """What a row does to the number of entries of its blocks."""
    if step.kind == FREE:
        return -1
    is_kept = step.kind == RECV and step.payload == KV and step.hold == KEEP
    return int(is_kept or step.kind == PRODUCE)


def _entries(sched: Schedule, step: Step) -> Iterator[tuple[int, int]]:
    groups = sched.groups(step.h_lo, step.h_hi)
    for chunk in range(step.c_lo, min(step.c_hi, sched.meta.num_chunks)):
        for maker in range(step.m_lo, step.m_hi):
            for group in range(groups.start, groups.stop):
                for block in blocks_of_cell(sched, (chunk, maker, group)):
                    yield group, block
