"""How a request ends early: between two chunks of prefill, behind the same chunk on every worker.

1. The head sends `hold`. Each worker's reading thread answers at once with the chunk that its main thread is in (-1
   before the first); the main thread starts no further chunk until it is told how far to go.
2. The head sends `stop_after` with the largest of these chunks. All workers run up to it, so that nobody waits for a
   peer that has stopped, and between chunks no transfer is under way.

This file needs the standard library alone.
"""

import threading


class Brake:
    """Shared by the thread that reads frames (`reset`, `hold`, `stop_after`) and the one that computes (`may_run`)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._current = -1
        self._last: int | None = None
        self._is_held = False

    def reset(self) -> None:
        """Begin a new request: every chunk may run."""
        with self._changed:
            self._current, self._last, self._is_held = -1, None, False

    def hold(self) -> int:
        """Let no further chunk start; return the one that was started last, -1 if none was."""
        with self._changed:
            self._is_held = True
            return self._current

    def stop_after(self, chunk: int) -> None:
        """Let the chunks up to `chunk` run, and none after it."""
        with self._changed:
            self._last, self._is_held = chunk, False
            self._changed.notify_all()

    def may_run(self, chunk: int) -> bool:
        """Say whether `chunk` may start, which it then does; waits while held."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_held)
            if self._last is not None and chunk > self._last:
                return False
            self._current = chunk
            return True
