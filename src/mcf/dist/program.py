"""One node's list, cut into the loops that the runtime walks: rows, what each waits for, and when slots are released.

Only arithmetic on the schedule: what is written there, made quick to look up. Nothing is decided here.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from mcf.schedule import Schedule
from mcf.schedule.deadlock import last_uses, use_pairs
from mcf.schedule.passes import group_keys, is_retire
from mcf.schedule.steps import (
    ALL,
    ATTEND,
    DRAIN,
    FREE,
    KEEP,
    KV,
    MERGE,
    NIC,
    NONE,
    PREFILL,
    PRODUCE,
    QUERY,
    RECV,
    SEND,
    STATE,
    Step,
)

Lanes = tuple[list[tuple[int, Step]], list[tuple[int, Step]]]  # compute, NIC


@dataclass(kw_only=True)
class Loop:
    """What one node runs per layer in one chunk (or per layer and token in decode), after `retire`, which runs once."""

    chunk: int
    stage: int
    retire: list[tuple[int, Step]] = field(default_factory=list)
    rows: list[tuple[int, Step]] = field(default_factory=list)
    num_pre: int = 0
    before: Lanes = field(default_factory=lambda: ([], []))  # the lanes of the rows before the layer's dense work
    behind: Lanes = field(default_factory=lambda: ([], []))  # and of all others
    deps: dict[int, list[int]] = field(default_factory=dict)  # row -> receives whose arrival it waits for
    after: dict[int, list[int]] = field(default_factory=dict)  # row -> rows of this list that it waits for
    waits: dict[int, list[tuple[int, Step]]] = field(default_factory=dict)  # the same, own rows first, then receives
    releases: dict[int, list[int]] = field(default_factory=dict)  # last use -> receives whose slot it releases
    readers: dict[int, list[int]] = field(default_factory=dict)  # receive -> sends that forward what it brought
    max_ahead: int = 0
    parts: tuple[str, ...] = ()  # what happens to replicas here, see `parts`
    final_merge: int = NONE  # the merge whose state is the output of this node's own queries


def loops(sched: Schedule, node: int) -> dict[tuple[int, int], Loop]:
    """(stage, chunk) -> Loop of one node."""
    keys = group_keys(sched.steps, sched.meta.num_chunks)
    recv, user = use_pairs(sched)
    last = last_uses(sched, (recv, user))
    rows = sched.node_rows(node)
    mine = (recv >= rows.start) & (recv < rows.stop)
    once = is_retire(sched.steps)
    out: dict[tuple[int, int], Loop] = {}
    for row in rows:
        step = sched.step(row)
        loop = out.setdefault((step.stage, step.chunk), Loop(chunk=step.chunk, stage=step.stage))
        (loop.retire if step.kind in (DRAIN, FREE) else loop.rows).append((row, step))
        loop.after[row] = [r for r in sched.after_of(row) if keys[r] == keys[row] and not once[r]]
        if step.kind in (SEND, RECV):
            loop.max_ahead = max(loop.max_ahead, step.ahead)
        if step.kind == RECV and last[row] >= 0:
            loop.releases.setdefault(int(last[row]), []).append(row)
    for r, u in zip(recv[mine].tolist(), user[mine].tolist(), strict=True):
        step = sched.step(u)
        loop = out[step.stage, step.chunk]
        loop.deps.setdefault(u, []).append(r)
        if step.kind == SEND:
            loop.readers.setdefault(r, []).append(u)
    for (stage, _), loop in out.items():
        _finish(loop)
        if stage == PREFILL:
            loop.parts = parts(sched, (step for _, step in loop.retire + loop.rows))
    return out


def parts(sched: Schedule, steps: Iterable[Step]) -> tuple[str, ...]:
    """Return what these rows of one chunk of prefill do to replicas, as names for `faults.point`.

    `prefill-early`: a copy arrives to be kept by a node that does not own it. `prefill-late`: a copy is drained.
    """
    rows = list(steps)
    early = ("prefill-early",) if any(_brings_replica(sched, step) for step in rows) else ()
    late = ("prefill-late",) if any(step.kind == DRAIN for step in rows) else ()
    return early + late


def parts_of_chunk(sched: Schedule, chunk: int) -> tuple[str, ...]:
    """Return `parts` of one chunk of prefill on all nodes together."""
    here = (sched.steps["stage"] == PREFILL) & (sched.steps["chunk"] == chunk)
    return parts(sched, (sched.step(int(row)) for row in np.flatnonzero(here)))


def _brings_replica(sched: Schedule, step: Step) -> bool:
    if (step.kind, step.payload, step.hold) != (RECV, KV, KEEP):
        return False
    groups = sched.groups(step.h_lo, step.h_hi)
    owners = sched.owner[step.c_lo : step.c_hi, step.m_lo : step.m_hi, groups.start : groups.stop]
    return bool((owners != step.node).any())


def _finish(loop: Loop) -> None:
    produces = [i for i, (_, step) in enumerate(loop.rows) if step.kind == PRODUCE]
    loop.num_pre = produces[0] if produces else 0
    steps = dict(loop.rows)
    loop.before, loop.behind = lanes(loop.rows[: loop.num_pre]), lanes(loop.rows[loop.num_pre :])
    for row, after in loop.after.items():
        loop.waits[row] = sorted(((r, steps[r]) for r in after), key=lambda pair: pair[1].kind == RECV)
    for row, step in loop.rows:
        if step.kind == MERGE and step.q in (step.node, ALL):
            loop.final_merge = row
        for recv in _control_recvs(loop, row, step, steps):
            loop.deps.setdefault(row, []).append(recv)
            if step.kind == SEND:
                loop.readers.setdefault(recv, []).append(row)


def _control_recvs(loop: Loop, row: int, step: Step, steps: dict[int, Step]) -> list[int]:
    """Receives of queries or states that a row reads."""
    if step.kind == SEND and step.payload == STATE:
        return [r for r in loop.after[row] if steps[r].kind == RECV and steps[r].payload == STATE]
    if step.q in (step.node, ALL, NONE) or not (step.kind == ATTEND or (step.kind, step.payload) == (SEND, QUERY)):
        return []
    return [
        r
        for r, s in loop.rows
        if r < row and (s.kind, s.payload, s.q) == (RECV, QUERY, step.q) and s.h_lo < step.h_hi and step.h_lo < s.h_hi
    ]


def lanes(rows: list[tuple[int, Step]]) -> Lanes:
    """Split rows into the compute lane and the NIC lane, each in list order."""
    return [r for r in rows if r[1].lane != NIC], [r for r in rows if r[1].lane == NIC]
