"""Editing a finished schedule row by row, renumbering what refers to rows. Nothing here keeps a schedule legal."""

from collections.abc import Iterable

import numpy as np

from mcf.schedule import Schedule
from mcf.schedule.passes import gather_after
from mcf.schedule.schedule import Array
from mcf.schedule.steps import NONE


def drop_rows(sched: Schedule, rows: Iterable[int]) -> Schedule:
    """Remove rows, and every `after` entry that names one; receives of a removed send must be removed with it."""
    keep = np.ones(len(sched), dtype=bool)
    keep[list(rows)] = False
    return _rebuild(sched, np.flatnonzero(keep), sched.steps[keep])


def insert_row(sched: Schedule, at: int, step: Array) -> Schedule:
    """Insert a row without `after` entries before row `at`."""
    order = np.insert(np.arange(len(sched)), at, NONE)
    steps = np.insert(sched.steps, at, step)
    return _rebuild(sched, order, steps)


def _rebuild(sched: Schedule, old: Array, steps: Array) -> Schedule:
    """Renumber: `old` [R'] is the former number of each row, -1 for a new one."""
    new_row = np.full(len(sched) + 1, NONE, dtype=np.int64)
    new_row[old[old >= 0]] = np.flatnonzero(old >= 0)
    segment, target = gather_after(sched)
    segment, target = new_row[segment], new_row[target]
    good = (segment >= 0) & (target >= 0)
    segment, target = segment[good], target[good]
    steps = steps.copy()
    steps["ref"] = np.where(steps["ref"] >= 0, new_row[steps["ref"]], NONE)
    order = np.argsort(segment, kind="stable")
    ends = np.cumsum(np.bincount(segment, minlength=len(steps))) if len(steps) else np.empty(0, np.int64)
    steps["after_lo"], steps["after_hi"] = ends - np.bincount(segment, minlength=len(steps)), ends
    return sched.replace(steps=steps, after=target[order].astype("<i4"))


def set_fields(sched: Schedule, row: int, **values: int) -> Schedule:
    """Change columns of one row."""
    steps = sched.steps.copy()
    for name, value in values.items():
        steps[name][row] = value
    return sched.replace(steps=steps)


def add_after(sched: Schedule, row: int, target: int) -> Schedule:
    """Let row `row` stand after row `target` too."""
    steps = sched.steps.copy()
    end = int(steps["after_hi"][row])
    later = np.arange(len(steps)) > row
    steps["after_lo"][later] += 1
    steps["after_hi"][later] += 1
    steps["after_hi"][row] += 1
    return sched.replace(steps=steps, after=np.insert(sched.after, end, target))
