"""Progress on stderr: live bars on a terminal, a few plain lines elsewhere.

The engine reports `(stage, done, total)`: `hash`, `convert`, `download` in bytes, `tokenizer` 0 to 1, `load` in
workers, `prefill` in prompt tokens.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from mcf.cli.tables import console, is_terminal
from mcf.dist.hosts import say
from mcf.units import count, format_bytes, format_seconds

PREFILL, LOAD = "prefill", "load"
SLOW_S = 2.0
_STAGES = {
    "hash": "hashing the model file",
    "tokenizer": "reading the tokenizer",
    "convert": "converting the weights (once)",
    "download": "downloading the model",
    LOAD: "starting workers, loading weights",
}
_TEXT_WIDTH, _LEAST_BAR, _MOST_BAR = 70, 8, 40  # characters: a bar's texts, and what is left for the bar
_IN_BYTES = ("hash", "convert", "download")
Clock = Callable[[], float]


class Reporter(Protocol):
    """Shows progress; `stop` leaves the terminal to others and is harmless when called again."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Show that `done` of `total` of a stage are done."""

    def stop(self) -> None:
        """End all bars."""


def reporter(stream: TextIO) -> Reporter:
    """Return what shows progress on the stream: bars where it is a terminal, else lines."""
    return LiveBars(stream) if is_terminal(stream) else PlainLines(stream)


class PlainLines:
    """One line when a stage begins, one for each prefill chunk."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._stage, self._done, self._start_s = "", 0.0, 0.0

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Print a line if the stage is new, or if prefill has come a chunk further."""
        if stage != self._stage:
            self._stage, self._done, self._start_s = stage, 0.0, self._clock()
            if stage != PREFILL:
                self._print(f"{stage}: {_words(stage)} ({_amount(stage, total)})")
        if stage == PREFILL and done > self._done:
            self._done = done
            self._print(f"{stage}: {prefill_text(done, total, self._clock() - self._start_s)}")

    def stop(self) -> None:
        """Do nothing: lines need no end."""

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class Silence:
    """Shows nothing: another process does."""

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class LiveBars:
    """One bar for loading, whatever its stage, and one for prefill."""

    def __init__(self, stream: TextIO, clock: Clock = time.monotonic) -> None:
        self._clock, self._start_s = clock, 0.0
        screen = console(stream)
        bar = BarColumn(max(_LEAST_BAR, min(_MOST_BAR, screen.width - _TEXT_WIDTH)))
        words, detail = TextColumn("{task.description}"), TextColumn("{task.fields[detail]}")
        columns = (SpinnerColumn(), words, bar, detail, TimeElapsedColumn())
        self._bars = Progress(*columns, console=screen, redirect_stdout=False)
        self._loading = self._bars.add_task("loading", total=None, detail="starting")
        self._prefill: TaskID | None = None
        self._bars.start()

    def __call__(self, stage: str, done: float, total: float) -> None:
        """Move the bar of the stage."""
        if stage != PREFILL:
            text = f"{_words(stage)} ({_amount(stage, total)})"
            self._bars.update(self._loading, completed=done, total=total, detail=text)
            return
        if self._prefill is None:
            self._start_s = self._clock()
            self._prefill = self._bars.add_task(PREFILL, total=total, detail="")
        text = prefill_text(done, total, self._clock() - self._start_s)
        self._bars.update(self._prefill, completed=done, detail=text)

    def stop(self) -> None:
        """Leave the bars as they are and give the terminal back."""
        self._bars.stop()


@contextmanager
def told_if_slow(line: str, *, after_s: float = SLOW_S, say: Callable[[str], object] = say) -> Iterator[None]:
    """Say a line, on stderr, if what is inside takes longer."""
    timer = threading.Timer(after_s, say, [line])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def prefill_text(done: float, total: float, elapsed_s: float) -> str:
    """Return tokens done, tokens per second and the time left at the pace so far."""
    text = f"{done:,.0f} of {count(round(total), 'token')}"
    if not done or elapsed_s <= 0:
        return text
    pace = f"{text}, {done / elapsed_s:,.0f} tokens/s"
    left_s = round(elapsed_s * (total - done) / done)
    return f"{pace}, {format_seconds(left_s)} left" if done < total else pace


def _words(stage: str) -> str:
    return _STAGES.get(stage, stage)


def _amount(stage: str, total: float) -> str:
    if stage in _IN_BYTES:
        return format_bytes(total)
    return count(round(total), "worker") if stage == LOAD else "1 file"
