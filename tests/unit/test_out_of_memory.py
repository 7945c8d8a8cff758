"""Out of memory, as each library says it, in the same words; and what a SIGKILL may mean."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from mcf.dist import process
from mcf.dist.memory import EXIT_CODE, KIND, in_words, is_out_of_memory
from mcf.dist.worker import error_fields
from mcf.errors import ModelError

TOO_MUCH = 1 << 60


def torch_asks() -> object:
    return torch.empty(TOO_MUCH, dtype=torch.uint8)


def numpy_asks() -> object:
    return np.empty(TOO_MUCH, dtype=np.uint8)


def python_asks() -> object:
    return bytearray(TOO_MUCH)


@pytest.mark.parametrize(("ask", "asked"), [(torch_asks, "1048576 TiB"), (numpy_asks, "1.00 EiB"), (python_asks, "")])
def test_a_refused_allocation_is_named_with_its_size_and_a_cure(ask, asked):
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        ask()
    fields = error_fields(caught.value, "plan")
    assert fields["kind"] == KIND
    assert fields["message"].startswith("out of memory while the KV pool was taken")
    assert ("it asked for" in fields["message"]) is bool(asked)
    assert asked.removeprefix("1048576") in fields["message"]
    assert fields["message"].endswith("use more workers, a smaller --kv-memory or --chunk-tokens, or --dtype bfloat16")


def test_other_errors_are_not_taken_for_it():
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert error_fields(RuntimeError("shape\nmismatch"), "plan")["message"] == "RuntimeError: shape mismatch"


def test_a_refusal_that_an_error_came_from_counts():
    try:
        try:
            raise OSError("x.so: failed to map segment from shared object")
        except OSError as exc:
            raise ModelError("the model cannot be loaded") from exc
    except ModelError as exc:
        fields = error_fields(exc, "load")
    assert (fields["kind"], fields["user"]) == (KIND, False)
    assert fields["message"].startswith("out of memory while the weights were loaded")


LEAVING = """
import threading
from mcf.dist.memory import leave_when_refused
leave_when_refused()
class Bomb:
    def __del__(self):
        raise {error}
def work():
    raise {error}
{act}
"""


@pytest.mark.parametrize("act", ["Bomb()", "threading.Thread(target=work).start()"])
@pytest.mark.parametrize(("error", "code"), [("MemoryError", EXIT_CODE), ("ValueError", 0)])
def test_a_refusal_that_nobody_can_handle_ends_the_process(act, error, code):
    done = subprocess.run([sys.executable, "-c", LEAVING.format(error=error, act=act)], capture_output=True, text=True)
    assert done.returncode == code
    assert (error in done.stderr) is (code == 0)


def test_its_exit_code_is_said_in_words():
    assert process.exit_text(EXIT_CODE).startswith("out of memory; use more workers")


def test_an_unknown_frame_has_no_place():
    assert in_words("", "ping").startswith("out of memory; use")


@pytest.mark.parametrize(
    ("now", "start", "says"),
    [
        (3, 3, "killed by SIGKILL, by another process"),
        (4, 3, "killed by SIGKILL, for want of memory: use more workers"),
        (None, 3, "killed by SIGKILL (out of memory?)"),
        (3, None, "killed by SIGKILL (out of memory?)"),
    ],
)
def test_a_sigkill_is_told_from_the_systems(monkeypatch, now, start, says):
    monkeypatch.setattr(process, "num_oom_kills", lambda: now)
    monkeypatch.setattr(process, "_OOM_KILLS_AT_START", start)
    assert process.exit_text(-signal.SIGKILL).startswith(says)
    assert process.exit_text(-signal.SIGTERM) == "killed by SIGTERM"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (-signal.SIGTERM, "see what ends processes here, then run again"),
        (-signal.SIGSEGV, "run again, and report it if it happens again"),
        (3, "run again, and report it if it happens again"),
        (EXIT_CODE, ""),  # its end is told with its cure
    ],
)
def test_each_end_of_a_worker_has_one_cure(code: int, says: str) -> None:
    assert process.cure_for(code) == says


def test_a_worker_killed_for_want_of_memory_has_one_cure_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_OOM_KILLS_AT_START", 0)
    for num_kills, says in ((0, "see what ends processes here, then run again"), (1, "")):
        monkeypatch.setattr(process, "num_oom_kills", lambda now=num_kills: now)
        assert process.cure_for(-signal.SIGKILL) == says
