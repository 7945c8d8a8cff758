"""Ctrl-C, SIGTERM and SIGHUP end the command within two seconds and with one line, whatever it is doing.

1. The first signal raises KeyboardInterrupt, so that everything is closed in order.
2. Where that takes longer than `LIMIT_S` (a thread that imports a large library cannot be stopped), or on a second
   signal, the process leaves at once. Workers never outlive it: their control channels close with it.
3. Rank 0 of a torchrun world gets SIGTERM mostly because another process of its host has died and the launcher ends
   the rest. It has `GRACE_S` to notice which one, and to say so, before rule 1.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

LIMIT_S = 1.0
GRACE_S = 10.0  # a worker that dies before it has met the head is known when its witness has imported torch
_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "ended by SIGTERM", signal.SIGHUP: "ended by SIGHUP"}
_STDERR = 2  # the descriptor itself: live bars put something else in the place of sys.stderr
_SHOW_CURSOR = b"\x1b[?25h"  # a live bar hides it


class QuickEnd:
    """While entered, the signals follow the rules above, but for those that are ignored; nothing in another thread.

    `grace_s` is the time of rule 3, 0 for any other process.
    """

    def __init__(self, *, grace_s: float = 0.0) -> None:
        self._usual: dict[signal.Signals, Any] = {}
        self._number = signal.SIGINT
        self._has_said = threading.Event()
        self._watchdog = threading.Timer(LIMIT_S, self._leave)
        main = threading.main_thread().ident
        self._grace = threading.Timer(grace_s, signal.pthread_kill, [main, signal.SIGTERM]) if grace_s else None
        for timer in (self._watchdog, self._grace):
            if timer is not None:
                timer.daemon = True

    @property
    def exit_code(self) -> int:
        """The exit code of a process that the signal has ended."""
        return 128 + self._number

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _WORDS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._usual[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._grace is not None:
            self._grace.cancel()
        for number, usual in self._usual.items():
            signal.signal(number, usual)

    def say(self) -> None:
        """Say once what has ended the command."""
        if not self._has_said.is_set():
            self._has_said.set()
            with suppress(OSError):
                print(_WORDS[self._number], file=sys.stderr, flush=True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and self._grace is not None and self._grace.ident is None:
            self._grace.start()
            return
        if self._watchdog.ident is not None:
            self._leave()
        self._number = signal.Signals(number)
        self._watchdog.start()
        raise KeyboardInterrupt

    def _leave(self) -> NoReturn:
        words = b"" if self._has_said.is_set() else f"{_WORDS[self._number]}\n".encode()
        with suppress(OSError):
            os.write(_STDERR, (_SHOW_CURSOR if os.isatty(_STDERR) else b"") + words)
        os._exit(self.exit_code)
