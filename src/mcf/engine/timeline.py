"""Joins the workers' traces: a transfer is under way from the later of its two postings until its arrival."""

from collections import defaultdict, deque

import numpy as np

from mcf.schedule import Schedule
from mcf.schedule.steps import RECV, SEND
from mcf.trace import Trace, concat


def join_traces(traces: list[Trace], sched: Schedule) -> Trace:
    """One trace on the machine's monotonic clock, each SEND event paired with the RECV event of the same row and layer.

    A worker alone sees only when it posted and when the payload came; both ends together tell when bytes could move.
    """
    joined = concat(traces)
    events = joined.events
    sends: dict[tuple[int, int], deque[int]] = defaultdict(deque)
    for i in np.flatnonzero(events["kind"] == SEND):
        if events["purpose"][i]:
            sends[int(events["row"][i]), int(events["layer"][i])].append(int(i))
    ref = sched.steps["ref"]
    order = np.argsort(events["t_end"], kind="stable")
    for i in order[events["kind"][order] == RECV].tolist():
        if not events["purpose"][i]:
            continue
        queue = sends[int(ref[events["row"][i]]), int(events["layer"][i])]
        if queue:
            j = queue.popleft()
            start = min(max(float(events["t_start"][i]), float(events["t_start"][j])), float(events["t_end"][i]))
            events["t_start"][i] = events["t_start"][j] = start
            events["t_end"][j] = events["t_end"][i]
    return joined
