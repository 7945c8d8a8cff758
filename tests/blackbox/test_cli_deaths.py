"""A worker that dies at any point ends the command with a named error; Ctrl-C ends it at once; no process is left."""

import signal
from collections.abc import Iterator

import pytest

from command import Command, mcf

pytestmark = [pytest.mark.dist, pytest.mark.slow]

RUN = ("--prompt", "a prompt of some chunks that take their time " * 4, "--chunk-tokens", "16", "--max-tokens", "8")
CTRL_C_S = 2.0  # what the command promises
PHASES = {
    "start": "joining",
    "joining": "joining",
    "loading": "loading",
    "prefill:n=2": "prefill",
    "convergence": "convergence",
    "decode:n=2": "decode",
}


@pytest.fixture
def signals_are_heard() -> Iterator[None]:
    """Commands started in the background of a shell or by nohup inherit ignored signals; these must not."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in usual.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("point", PHASES)
def test_a_killed_worker_ends_the_run_with_its_name_and_phase(toy, point) -> None:
    done = mcf("run", str(toy), *RUN, MCF_FAULT=f"kill:rank=1:phase={point}")
    assert (done.code, done.left) == (1, [])
    assert done.error.startswith(f"error: worker 1 was lost during {PHASES[point]}: killed by SIGKILL")


def test_debug_shows_the_traceback_of_the_worker_too(toy) -> None:
    done = mcf("run", str(toy), *RUN, "--debug", MCF_FAULT="raise:rank=1:phase=prefill")
    assert (done.code, done.left) == (1, [])
    assert done.err.count("Traceback (most recent call last)") >= 2
    assert "node.py" in done.err
    assert "error: worker 1 failed during prefill: RuntimeError: a fault asked for by MCF_FAULT" in done.err


@pytest.mark.parametrize("phase", ["loading", "prefill"])
def test_ctrl_c_ends_everything_at_once(toy, phase, signals_are_heard) -> None:
    command = Command("run", str(toy), *RUN, MCF_FAULT=f"stop:rank=1:phase={phase}")
    took_s = command.interrupt_when_a_worker_stops()
    done = command.finish()
    assert (done.code, done.left) == (130, [])
    assert done.err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in done.err
    assert took_s < CTRL_C_S


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_with_one_line_too(number, signals_are_heard) -> None:
    command = Command("show", "-")  # which waits for stdin
    command.wait_until_it_minds(number)
    command.popen.send_signal(number)
    done = command.finish()
    assert (done.code, done.out, done.err, done.left) == (128 + number, "", f"ended by {number.name}\n", [])


def test_a_time_limit_ends_the_run_with_its_phase(toy) -> None:
    done = mcf("run", str(toy), *RUN, "--timeout", "10ms")
    assert (done.code, done.left) == (1, [])
    assert done.error == ("error: not done within its time limit of 0.01 s: it ended during joining; allow more time")
