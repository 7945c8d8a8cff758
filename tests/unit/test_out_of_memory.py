"""Out of memory, as each library says it, in the same words; and what a SIGKILL may mean."""

import signal

import numpy as np
import pytest
import torch

from mcf.dist import process
from mcf.dist.memory import KIND, in_words, is_out_of_memory
from mcf.dist.worker import error_fields

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
