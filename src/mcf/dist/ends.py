"""The head's ends of its workers, of whatever kind, and how all of them are ended together."""

import contextlib
import time
from collections.abc import Sequence
from typing import Protocol

from mcf.dist.control import Channel
from mcf.errors import TransportError

_POLITE_S, _TERM_S, _POLL_S = 0.7, 0.4, 0.01


class WorkerEnd(Protocol):
    """A worker as the head sees it: a local process (`mcf.dist.process`), or a connection (`mcf.dist.remote`)."""

    rank: int
    channel: Channel
    host: str

    @property
    def pid(self) -> int:
        """The process id on the worker's host."""
        ...

    def is_dead(self) -> bool:
        """Return whether it is known to have ended."""
        ...

    def is_stopped(self) -> bool:
        """Return whether it is known to be stopped (SIGSTOP)."""
        ...

    def was_killed(self) -> bool:
        """Return whether it ended by a signal, as far as can be told."""
        ...

    def may_be_silent_while_starting(self) -> bool:
        """Return whether heavy imports still lie before it, which can keep its heartbeats from running."""
        ...

    def why_lost(self) -> str:
        """Return in words how it ended."""
        ...

    def printed(self) -> str:
        """Return the tail of what it printed, where the head gets it."""
        ...

    def has_left(self) -> bool:
        """Return whether it has ended after a shutdown; frames that still come are dropped."""
        ...

    def terminate(self) -> None:
        """Ask the system to end it."""
        ...

    def cut(self, why: str) -> None:
        """End it at once, or cut it off so that it ends itself; tell it why where that can be done."""
        ...

    def reap(self) -> None:
        """Wait for the end and give back what is held for it. Harmless when called again."""
        ...


def stop_all(workers: Sequence[WorkerEnd]) -> None:
    """End all workers: a shutdown frame, then SIGTERM, then SIGKILL, about 1.2 s in all at the worst."""
    for worker in workers:
        _ask_to_stop(worker)
    if not _all_left_within(workers, _POLITE_S):
        for worker in workers:
            worker.terminate()
        _all_left_within(workers, _TERM_S)
    kill_all(workers)


def kill_all(workers: Sequence[WorkerEnd], why: str = "") -> None:
    """Kill and reap all workers at once; harmless when called again."""
    for worker in workers:
        worker.cut(why)
    for worker in workers:
        worker.reap()


def _ask_to_stop(worker: WorkerEnd) -> None:
    if worker.is_dead() or worker.channel.is_cut or worker.is_stopped():
        return
    with contextlib.suppress(TransportError):  # it is told by signals instead
        worker.channel.send("shutdown")


def _all_left_within(workers: Sequence[WorkerEnd], limit_s: float) -> bool:
    deadline_s = time.monotonic() + limit_s
    while not all(worker.has_left() for worker in workers):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
