"""Ctrl-C ends the command within two seconds, whatever it is doing.

1. The first Ctrl-C raises KeyboardInterrupt, so that everything is closed in order.
2. Where that takes longer than `LIMIT_S` (a thread that imports a large library cannot be stopped), or on a second
   Ctrl-C, the process leaves at once. Workers never outlive it: their control channels close with it.
"""

import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

EXIT_CODE = 130
LIMIT_S = 1.0
_STDERR = 2  # the descriptor itself: live bars put something else in the place of sys.stderr
_SHOW_CURSOR = b"\x1b[?25h"  # a live bar hides it


class QuickCtrlC:
    """While entered, Ctrl-C follows the rules above; does nothing where Ctrl-C is ignored or in another thread."""

    def __init__(self) -> None:
        self._usual: Any = None
        self._has_said = threading.Event()
        self._watchdog = threading.Timer(LIMIT_S, self._leave)
        self._watchdog.daemon = True

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
            self._usual = signal.signal(signal.SIGINT, self._on_ctrl_c)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._usual is not None:
            signal.signal(signal.SIGINT, self._usual)

    def say(self) -> None:
        """Say once that the command was interrupted."""
        if not self._has_said.is_set():
            self._has_said.set()
            with suppress(OSError):
                print("interrupted", file=sys.stderr, flush=True)

    def _on_ctrl_c(self, number: int, frame: FrameType | None) -> None:
        if self._watchdog.ident is not None:
            self._leave()
        self._watchdog.start()
        raise KeyboardInterrupt

    def _leave(self) -> NoReturn:
        words = b"" if self._has_said.is_set() else b"interrupted\n"
        with suppress(OSError):
            os.write(_STDERR, (_SHOW_CURSOR if os.isatty(_STDERR) else b"") + words)
        os._exit(EXIT_CODE)
