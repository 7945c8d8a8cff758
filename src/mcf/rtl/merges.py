"""Merges of decode that reduction units do: which rows, whose states, and which child each of them is. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcf.errors import ScheduleError
from mcf.rtl.golden.state import LANES, MAX_CHILDREN
from mcf.rtl.registers import NUM_SLOTS
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import ATTEND, DECODE, KIND_NAMES, MERGE, RECV

OUT_BEATS = 16  # of a state in the reduction unit: a head size of at most 128
RECORD_BEATS = 1 + OUT_BEATS  # of a state in a packet or in memory: sum, exponent and child before its outputs


@dataclass(frozen=True, kw_only=True)
class Merge:
    """A merge that a reduction unit does: its row, and the rows whose states it merges, in order: the children."""

    row: int
    inputs: tuple[int, ...]


def unit_merges(sched: Schedule) -> dict[int, Merge]:
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


def children(sched: Schedule, merges: Mapping[int, Merge]) -> dict[int, int]:
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
