"""When posted transfers end: each is waited for by a thread of its own, so that its end is seen, and timed, while the
main thread computes.

A thread per transfer in flight (reused when idle) is what makes any verified schedule free of dead-lock here: the lanes
go on as soon as any transfer ends, in whatever order they end.
"""

import _thread
import queue
import threading
import time
from collections.abc import Callable, Hashable

from mcf.dist.transport import Handle

_START_S = 2.0
Job = tuple[Hashable, Handle]


class Arrivals:
    """Ends of transfers by key. The main thread asks and waits; waiter threads report.

    A thread that gets no memory while it starts dies unheard, and `threading.Thread.start` would wait for it for ever:
    so nobody waits for a start, and one that takes longer than `_START_S` raises MemoryError where it would be missed.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ended: dict[Hashable, float] = {}
        self._error: BaseException | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._num_asked = self._num_begun = 0
        self._asked_s = 0.0

    def post(self, key: Hashable, handle: Handle) -> None:
        """Have `handle` waited for; `key` is then among the ended."""
        self._jobs.put((key, handle))
        if not self._idle.acquire(blocking=False):
            self._num_asked += 1
            self._asked_s = time.monotonic()
            _thread.start_new_thread(self._work, ())

    def has(self, key: Hashable) -> bool:
        """Say whether a transfer has ended. Raises the error of any transfer that failed."""
        if self._error is not None:
            raise self._error
        return key in self._ended

    def pop(self, key: Hashable) -> float:
        """Forget an ended transfer and return when it ended (s, monotonic)."""
        return self._ended.pop(key)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Block until `ready()`, asked again after each end. Raises the error of any transfer that failed."""
        with self._changed:
            while True:
                if self._error is not None:
                    raise self._error
                if ready():
                    return
                if not self._changed.wait(_START_S):
                    self._check_threads()

    def close(self) -> None:
        """Let idle threads go; those still waiting end with their transfers."""
        for _ in range(self._num_asked):
            self._jobs.put(None)

    def _check_threads(self) -> None:
        if self._num_begun < self._num_asked and time.monotonic() - self._asked_s >= _START_S:
            raise MemoryError("can't start new thread")

    def _work(self) -> None:
        with self._changed:
            self._num_begun += 1
        while (job := self._jobs.get()) is not None:
            self._watch(*job)

    def _watch(self, key: Hashable, handle: Handle) -> None:
        try:
            handle.wait()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._idle.release()
                self._changed.notify_all()
            return
        now = self._clock()
        with self._changed:
            self._ended[key] = now
            self._idle.release()  # before anybody can ask: this thread looks for work next
            self._changed.notify_all()
