"""Helpers for tests that start processes."""

import time
from collections.abc import Iterable

import psutil

PATIENCE_S = 30.0


def is_alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def still_alive(pids: Iterable[int]) -> list[int]:
    """Wait patiently for processes to end; return those that have not."""
    left = list(pids)
    deadline_s = time.monotonic() + PATIENCE_S
    while left and time.monotonic() < deadline_s:
        left = [pid for pid in left if is_alive(pid)]
        time.sleep(0.01)
    return left


def children_of(pid: int, count: int) -> list[int]:
    """Wait until a process has `count` children; return their ids."""
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found := psutil.Process(pid).children()) < count:
        assert time.monotonic() < deadline_s, f"process {pid} has {len(found)} children, expected {count}"
        time.sleep(0.01)
    return [child.pid for child in found]
