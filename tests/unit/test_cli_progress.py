"""Progress on stderr: bars on a terminal, few lines elsewhere."""

import io
import threading
from collections.abc import Iterator

import pytest

from mcf.cli.progress import LiveBars, PlainLines, prefill_text, reporter, told_if_slow
from mcf.cli.run import Answer


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def ticks() -> Iterator[float]:
    """A clock that goes on by a second whenever it is read."""
    now_s = 0.0
    while True:
        yield now_s
        now_s += 1.0


def test_plain_lines_are_one_per_stage_and_one_per_chunk() -> None:
    stream, clock = io.StringIO(), ticks()
    lines = PlainLines(stream, clock.__next__)
    for done in range(0, 101, 10):
        lines("hash", done, 100 * 2**20)
    for done in (0, 0, 1, 2):
        lines("load", done, 2)
    for done in (0, 0, 512, 512, 512, 1024, 1300):  # each worker reports each chunk
        lines("prefill", done, 1300)
    lines.stop()
    assert stream.getvalue().splitlines() == [
        "hash: hashing the model file (100 MiB)",
        "load: starting workers, loading weights (2 workers)",
        "prefill: 512 of 1,300 tokens, 512 tokens/s, 2 s left",
        "prefill: 1,024 of 1,300 tokens, 512 tokens/s, 1 s left",
        "prefill: 1,300 of 1,300 tokens, 433 tokens/s",
    ]


def test_live_bars_show_loading_and_prefill_and_give_the_cursor_back(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    stream = Terminal()
    bars = LiveBars(stream, ticks().__next__)
    bars("load", 1, 2)
    bars("prefill", 0, 9000)
    bars("prefill", 4500, 9000)
    bars.stop()
    bars.stop()
    text = stream.getvalue()
    assert "starting workers, loading weights" in text
    assert "4,500 of 9,000 tokens, 2,250 tokens/s, 2 s left" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


def test_what_takes_long_is_told_and_nothing_else(capsys) -> None:
    with told_if_slow("quick work"):
        pass
    printed = threading.Event()
    with told_if_slow("slow work", after_s=0.0, say=lambda line: (print(line), printed.set())):
        assert printed.wait(30)
    assert capsys.readouterr().out == "slow work\n"


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [(io.StringIO(), "xterm", PlainLines), (Terminal(), "dumb", PlainLines), (Terminal(), "xterm", LiveBars)],
)
def test_bars_are_for_terminals_only(monkeypatch, stream, term, kind) -> None:
    monkeypatch.setenv("TERM", term)
    shown = reporter(stream)
    shown.stop()
    assert type(shown) is kind


@pytest.mark.parametrize(
    ("done", "elapsed_s", "text"),
    [
        (0, 5.0, "0 of 6,900 tokens"),
        (10, 0.0, "10 of 6,900 tokens"),
        (690, 10.0, "690 of 6,900 tokens, 69 tokens/s, 90 s left"),
    ],
)
def test_no_pace_is_claimed_before_there_is_one(done, elapsed_s, text) -> None:
    assert prefill_text(done, 6900, elapsed_s) == text


def test_an_answer_cannot_steer_the_terminal_but_is_untouched_in_a_file(monkeypatch) -> None:
    shown = {}
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr("sys.stdout", stream)
        answer = Answer(PlainLines(io.StringIO()), is_quiet=False)
        answer("red \x1b[31m\u009b1m\tand\nblue")
        shown[stream.isatty()] = stream.getvalue()
    assert shown == {True: "red \ufffd[31m\ufffd1m\tand\nblue", False: "red \x1b[31m\u009b1m\tand\nblue"}


def test_the_first_piece_of_an_answer_ends_the_bars_and_json_prints_none(monkeypatch) -> None:
    stopped = []

    class Bars(PlainLines):
        def stop(self) -> None:
            stopped.append(True)

    stdout = io.StringIO()
    monkeypatch.setattr("sys.stdout", stdout)
    Answer(Bars(io.StringIO()), is_quiet=True)("text")
    assert (stopped, stdout.getvalue()) == ([True], "")
