"""How the head notices what happens to its workers: one place that reads all control channels and judges.

1. A worker is lost when its control channel closes or its process ends (noticed at once), and silent when it sends
   nothing for `silent_s`. Until it has joined, a worker that runs may be silent for `STARTING_S`: loading a library
   can keep its threads from running; one that is stopped may not.
2. A worker whose link to a peer broke is not to blame if a peer has died: a dead worker is named first, then one with
   an error of its own, then the broken link.
"""

import selectors
from collections import deque
from collections.abc import Callable, Sequence

from mcf.dist import memory
from mcf.dist.control import Frame
from mcf.dist.ends import WorkerEnd
from mcf.errors import (
    RunError,
    TransportError,
    UserError,
    WorkerFailedError,
    WorkerLostError,
    WorkerMemoryError,
    WorkerSilentError,
)

STARTING_S = 60.0
TICK_S = 0.2
_BLAME_S = 0.5


class Worker:
    """What the head knows of one worker: its process, its unread frames, its error, and when it last sent anything."""

    def __init__(self, process: WorkerEnd, now_s: float) -> None:
        self.process = process
        self.rank = process.rank
        self.seen_s = now_s
        self.has_joined = False
        self.inbox: deque[Frame] = deque()
        self.error: Frame | None = None

    def is_gone(self) -> bool:
        """Return whether its channel or its process has ended."""
        return self.process.channel.at_end or self.process.is_dead()

    def has_broken_link(self) -> bool:
        """Return whether its error is that the link to a peer broke."""
        return self.error is not None and "peer" in self.error.fields


class Watch:
    """Reads the frames of all workers and raises, naming `phase`, when one is lost, failed or silent."""

    def __init__(self, processes: Sequence[WorkerEnd], *, silent_s: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._silent_s = silent_s
        self.workers = [Worker(process, clock()) for process in processes]
        self._selector = selectors.DefaultSelector()
        for worker in self.workers:
            self._selector.register(worker.process.channel, selectors.EVENT_READ, worker)

    def add(self, process: WorkerEnd) -> None:
        """Watch one more worker; `workers` stay in rank order."""
        worker = Worker(process, self._clock())
        self.workers = sorted([*self.workers, worker], key=lambda one: one.rank)
        self._selector.register(process.channel, selectors.EVENT_READ, worker)

    def pump(self, timeout_s: float, phase: str) -> None:
        """Read what comes within `timeout_s`, then judge every worker."""
        self._read(timeout_s, phase)
        self.raise_failure(phase)
        if self._silent():
            self._read(0.0, phase)  # if it was the head that slept, the beats of that time are here
            for worker in self._silent():
                raise WorkerSilentError(worker.rank, phase, self._clock() - worker.seen_s, host=worker.process.host)

    def raise_failure(self, phase: str) -> None:
        """Raise what rule 2 says, if anything has gone wrong."""
        deadline_s = self._clock() + _BLAME_S
        while self._has_only_broken_links() and self._clock() < deadline_s:
            self._read(TICK_S / 4, phase)
        dead = [worker for worker in self.workers if worker.is_gone() and worker.error is None]
        if dead:
            raise _lost(min(dead, key=lambda worker: not worker.process.was_killed()), phase)
        failed = [worker for worker in self.workers if worker.error is not None]
        if failed:
            raise _failed(min(failed, key=Worker.has_broken_link), phase)

    def blame_closed(self, rank: int, phase: str) -> RunError:
        """Return the error for a worker that does not take frames any more; raises a better one if it knows one."""
        self._read(0.0, phase)
        self.raise_failure(phase)
        return _lost(self.workers[rank], phase)

    def close(self) -> None:
        """Stop reading."""
        self._selector.close()

    def _read(self, timeout_s: float, phase: str) -> None:
        for key, _ in self._selector.select(timeout_s):
            self._read_one(key.data, phase)

    def _read_one(self, worker: Worker, phase: str) -> None:
        channel = worker.process.channel
        try:
            frames = channel.read_ready()
        except TransportError as exc:
            raise WorkerFailedError(worker.rank, phase, f"it sent garbage: {exc}", host=worker.process.host) from exc
        worker.seen_s = self._clock()
        worker.inbox.extend(frame for frame in frames if frame.type not in ("beat", "error"))
        errors = [frame for frame in frames if frame.type == "error"]
        worker.error = worker.error or (errors[0] if errors else None)
        if channel.at_end:
            self._selector.unregister(channel)

    def _has_only_broken_links(self) -> bool:
        errors = [worker for worker in self.workers if worker.error is not None]
        is_lost = any(worker.is_gone() for worker in self.workers if worker.error is None)
        return bool(errors) and not is_lost and all(worker.has_broken_link() for worker in errors)

    def _silent(self) -> list[Worker]:
        return [worker for worker in self.workers if self._clock() - worker.seen_s > self._limit_s(worker)]

    def _limit_s(self, worker: Worker) -> float:
        is_starting = not worker.has_joined and worker.process.may_be_silent_while_starting()
        return max(self._silent_s, STARTING_S) if is_starting else self._silent_s


def _lost(worker: Worker, phase: str) -> RunError:
    return WorkerLostError(worker.rank, phase, worker.process.why_lost(), host=worker.process.host)


def _failed(worker: Worker, phase: str) -> RunError | UserError:
    """Return the error that a worker reported; a mistake of the user stays one. Its traceback becomes a note."""
    assert worker.error is not None
    message = worker.error["message"]
    host = worker.process.host
    kind = WorkerMemoryError if worker.error["kind"] == memory.KIND else WorkerFailedError
    if worker.error["user"]:
        exc: RunError | UserError = UserError(f"worker {worker.rank} on {host}: {message}" if host else message)
    else:
        exc = kind(worker.rank, phase, message, host=host)
    exc.add_note(worker.error.fields.get("trace", ""))
    return exc
