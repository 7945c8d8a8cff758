"""Helpers for tests of the installed `mcf` command."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from processes import PATIENCE_S

ROOT = Path(__file__).parent.parent
MCF = str(Path(sys.executable).with_name("mcf"))
MARK = "MCF_TEST_MARK"  # tells this test's processes from all others: workers inherit it
TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a command ended; `left` are the processes that outlived it."""

    code: int
    out: str
    err: str
    left: list[int]

    @property
    def error(self) -> str:
        """The one error line; there must be exactly one, and no traceback."""
        lines = [line for line in self.err.splitlines() if line.startswith(("error: ", "internal error: "))]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]


class Command:
    """A running `mcf` with an environment of its own."""

    def __init__(self, *args: str, **env: str) -> None:
        self.mark = uuid.uuid4().hex
        full_env = {**os.environ, "COLUMNS": "100", MARK: self.mark, **env}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.popen = subprocess.Popen([MCF, *args], env=full_env, text=True, encoding="utf-8", **pipes)

    def finish(self, stdin: str | None = None) -> Done:
        """Wait for the end."""
        try:
            out, err = self.popen.communicate(stdin, timeout=TIMEOUT_S)
        finally:
            self.popen.kill()
        return Done(code=self.popen.returncode, out=out, err=err, left=self._left())

    def interrupt_when_a_worker_stops(self) -> float:
        """Wait for a worker that stopped itself (a fault), press Ctrl-C; return how long the command took to end."""
        self._wait_for_a_stopped_worker()
        begin_s = time.monotonic()
        self.popen.send_signal(signal.SIGINT)
        self.popen.wait(TIMEOUT_S)
        return time.monotonic() - begin_s

    def wait_until_it_minds(self, number: signal.Signals) -> None:
        """Wait until the command has a handler for a signal."""
        deadline_s = time.monotonic() + TIMEOUT_S
        status = Path(f"/proc/{self.popen.pid}/status")
        while not int(re.findall(r"^SigCgt:\t(\w+)", status.read_text(), re.MULTILINE)[0], 16) >> (number - 1) & 1:
            assert time.monotonic() < deadline_s, f"it does not mind {number.name}"
            time.sleep(0.02)

    def _wait_for_a_stopped_worker(self) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not any(process.status() == psutil.STATUS_STOPPED for process in self._children()):
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline_s, "no worker has stopped"
            time.sleep(0.02)

    def _children(self) -> Iterator[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            yield from psutil.Process(self.popen.pid).children(recursive=True)

    def _left(self) -> list[int]:
        deadline_s = time.monotonic() + PATIENCE_S
        while (left := self._marked()) and time.monotonic() < deadline_s:
            time.sleep(0.02)
        return left

    def _marked(self) -> list[int]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == self.mark:
                    found.append(process.pid)
        return found


def mcf(*args: str, stdin: str | None = None, **env: str) -> Done:
    """Run the installed command to its end."""
    return Command(*args, **env).finish(stdin)


# --- docs/json.md ---

_CHECKS: dict[str, Any] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
}


def documented_keys(command: str) -> dict[str, str]:
    """Return key -> type, as docs/json.md says for one command."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = page.split(f"## `mcf {command} --json`\n", 1)[1].split("\n## ", 1)[0]
    return dict(re.findall(r"^\| `([\w.]+)` \| ([^|]+?) \|", section, flags=re.MULTILINE))


def check_json(text: str, command: str) -> dict[str, Any]:
    """Check that the text is one JSON object with exactly the documented keys and types; return it."""
    found = json.loads(text)
    types = documented_keys(command)
    assert found.keys() == {key for key in types if "." not in key}
    for outer in {key.split(".")[0] for key in types if "." in key}:
        assert found[outer].keys() == {key.split(".")[1] for key in types if key.startswith(f"{outer}.")}
    for key, kind in types.items():
        outer, _, inner = key.partition(".")
        value = found[outer][inner] if inner else found[outer]
        assert _is(value, kind), f"{key} is {value!r}: documented as {kind}"
    return dict(found)


def _is(value: Any, kind: str) -> bool:
    if (many := re.fullmatch(r"(array|object) of (\w+)s", kind)) is not None:
        outer, inner = {"array": list, "object": dict}[many[1]], _CHECKS[many[2]]
        values = value.values() if isinstance(value, dict) else value
        return isinstance(value, outer) and len(values) > 0 and all(map(inner, values))
    return any(_CHECKS[name](value) for name in kind.split(" or "))
