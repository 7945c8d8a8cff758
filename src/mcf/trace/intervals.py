"""Arithmetic on sets of half-open time intervals, as arrays [n, 2] of (start, end)."""

import numpy as np
from numpy.typing import NDArray

Intervals = NDArray[np.float64]


def clip(intervals: Intervals, t0: float, t1: float) -> Intervals:
    """Return the parts of the intervals inside t0..t1; empty ones fall away."""
    inside = np.clip(intervals, t0, t1)
    return inside[inside[:, 0] < inside[:, 1]]


def union(intervals: Intervals) -> Intervals:
    """Return the disjoint intervals, in rising order, that cover the same points."""
    if not len(intervals):
        return intervals
    rising = intervals[np.argsort(intervals[:, 0], kind="stable")]
    ends = np.maximum.accumulate(rising[:, 1])
    first = np.concatenate([[True], rising[1:, 0] > ends[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([rising[first, 0], ends[last]], axis=1)


def covered_s(intervals: Intervals) -> float:
    """Return the length in seconds of what the intervals cover together."""
    joined = union(intervals)
    return float((joined[:, 1] - joined[:, 0]).sum())
