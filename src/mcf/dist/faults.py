"""Deterministic faults, for tests: what happens when a named point of a worker is reached for the n-th time.

The variable MCF_FAULT holds faults separated by commas, each `action:rank=R:phase=NAME[:n=COUNT]`:

    kill   the worker kills itself (SIGKILL)
    stop   the worker stops itself (SIGSTOP): alive, but without heartbeats
    raise  the worker raises RuntimeError
    exit   the worker exits with code 3

Unset, a point costs one test of a module variable.
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from mcf.errors import UserError

VARIABLE = "MCF_FAULT"
_USAGE = "expected action:rank=R:phase=NAME[:n=COUNT], for instance kill:rank=1:phase=prefill:n=3"


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _raise() -> None:
    raise RuntimeError(f"a fault asked for by {VARIABLE}")


def _exit() -> None:
    print(f"exit asked for by {VARIABLE}", file=sys.stderr, flush=True)
    os._exit(3)


_ACTIONS: dict[str, Callable[[], None]] = {"kill": _kill, "stop": _stop, "raise": _raise, "exit": _exit}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Do `action` when worker `rank` reaches point `phase` for the `n`-th time (from 1)."""

    action: str
    rank: int
    phase: str
    n: int = 1


def _parse_one(text: str) -> Fault:
    action, *pairs = text.strip().split(":")
    given = dict(pair.partition("=")[::2] for pair in pairs)
    numbers = (given.get("rank", ""), given.get("n", "1"))
    known = action in _ACTIONS and {"rank", "phase"} <= given.keys() <= {"rank", "phase", "n"}
    if not known or not given["phase"] or not all(number.isdecimal() for number in numbers):
        raise UserError(f"{VARIABLE} has {text.strip()!r}: {_USAGE}; actions are {', '.join(sorted(_ACTIONS))}")
    return Fault(action=action, rank=int(numbers[0]), phase=given["phase"], n=int(numbers[1]))


def parse(text: str) -> tuple[Fault, ...]:
    """Return the faults that `text` describes; none for an empty text. Raises UserError."""
    return tuple(_parse_one(part) for part in text.split(",")) if text.strip() else ()


_armed: tuple[Fault, ...] = ()
_num_reached: dict[str, int] = {}


def arm(rank: int, text: str) -> None:
    """Arm this process, worker `rank`, with its faults of `text`."""
    global _armed
    _armed = tuple(fault for fault in parse(text) if fault.rank == rank)
    _num_reached.clear()


def point(phase: str) -> None:
    """Say that the named point is reached; does what an armed fault asks for."""
    if not _armed:
        return
    _num_reached[phase] = _num_reached.get(phase, 0) + 1
    for fault in _armed:
        if fault.phase == phase and fault.n == _num_reached[phase]:
            _ACTIONS[fault.action]()
