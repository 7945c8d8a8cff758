"""Legal schedules near a legal one: rows moved within their loop, more rows to stand after, as `verify` allows."""

from random import Random

import numpy as np

from mcf.errors import LawError
from mcf.schedule import Schedule, verify
from mcf.schedule.passes import gather_after, group_keys
from mcf.schedule.steps import ATTEND, DRAIN, FREE, MERGE, RECV, SEND, STATE
from mcf.testing.editing import add_after


def jostle(sched: Schedule, rng: Random, num_tries: int) -> Schedule:
    """Try so many small changes one after the other and keep those that leave the schedule legal."""
    for _ in range(num_tries):
        changed = rng.choice((_moved, _moved, _with_another_after))(sched, rng)
        if _is_legal(changed):
            sched = changed
    return sched


def _is_legal(sched: Schedule) -> bool:
    try:
        verify(sched)
    except LawError:
        return False
    return True


def _moved(sched: Schedule, rng: Random) -> Schedule:
    """Move a row to the place of another one of its loop."""
    row = rng.randrange(len(sched))
    order = list(range(len(sched)))
    order.insert(rng.choice(_loop(sched, row)), order.pop(row))
    return reordered(sched, np.array(order))


def reordered(sched: Schedule, order: np.ndarray) -> Schedule:
    """Put row `order[i]` at place i."""
    place = np.argsort(order)
    segment, target = (place[x] for x in gather_after(sched))
    by_row = np.argsort(segment, kind="stable")
    steps = sched.steps[order].copy()
    recvs = steps["kind"] == RECV
    steps["ref"][recvs] = place[steps["ref"][recvs]]
    ends = np.cumsum(np.bincount(segment, minlength=len(steps)))
    steps["after_lo"], steps["after_hi"] = np.concatenate([[0], ends[:-1]]), ends
    return sched.replace(steps=steps, after=target[by_row].astype("<i4"))


def _with_another_after(sched: Schedule, rng: Random) -> Schedule:
    """Let a row wait for an earlier one of its loop; what a merge or a sent state is made of stays as it is."""
    row = rng.randrange(len(sched))
    step = sched.step(row)
    if step.kind in (MERGE, DRAIN, FREE):
        return sched
    earlier = [r for r in _loop(sched, row) if r < row and r not in sched.after_of(row)]
    if step.kind == SEND and step.payload == STATE:
        earlier = [r for r in earlier if not _makes_state(sched, r)]
    return add_after(sched, row, rng.choice(earlier)) if earlier else sched


def _makes_state(sched: Schedule, row: int) -> bool:
    step = sched.step(row)
    return step.kind in (ATTEND, MERGE) or (step.kind == RECV and step.payload == STATE)


def _loop(sched: Schedule, row: int) -> list[int]:
    keys = group_keys(sched.steps, sched.meta.num_chunks)
    return np.flatnonzero(keys == keys[row]).tolist()  # type: ignore[no-any-return]
