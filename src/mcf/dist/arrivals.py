"""When posted transfers end: each is waited for by a thread of its own, so that its end is seen, and timed, while the
main thread computes.

A thread per transfer in flight (reused when idle) is what makes any verified schedule free of dead-lock here: the lanes
go on as soon as any transfer ends, in whatever order they end.
"""

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor

from mcf.dist.transport import Handle

_MOST_IN_FLIGHT = 1024


class Arrivals:
    """Ends of transfers by key. The main thread asks and waits; waiter threads report."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._ended: dict[Hashable, float] = {}
        self._error: BaseException | None = None
        self._pool = ThreadPoolExecutor(max_workers=_MOST_IN_FLIGHT, thread_name_prefix="mcf-transfer")

    def post(self, key: Hashable, handle: Handle) -> None:
        """Have `handle` waited for; `key` is then among the ended."""
        self._pool.submit(self._watch, key, handle)

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
                self._changed.wait()

    def close(self) -> None:
        """Let idle threads go; those still waiting end with their transfers."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _watch(self, key: Hashable, handle: Handle) -> None:
        try:
            handle.wait()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
            return
        now = self._clock()
        with self._changed:
            self._ended[key] = now
            self._changed.notify_all()
