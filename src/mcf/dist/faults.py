"""Deterministic faults, for tests: what happens when a named point of a process is reached for the n-th time.

The variable MCF_FAULT holds faults separated by commas, each `action:rank=R:phase=NAME[:n=COUNT]`; R is a worker's
rank, or `head`:

    kill   the process kills itself (SIGKILL)
    stop   the process stops itself (SIGSTOP): alive, but without heartbeats
    raise  the process raises RuntimeError
    exit   the process exits with code 3
    starve the process gets no more memory than it has (RLIMIT_AS)

Points of a worker: importing (on another host, before torch is), start, joining, loading, planning, prefill (each
chunk), prefill-early (each chunk in which a replica arrives here), prefill-late (each chunk before which a replica is
drained here), convergence, decode (each token), shutdown.
Points of the head: the phases of its world, as they begin; prefill-early and prefill-late by what the workers report.

Unset, a point costs one test of a module variable.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mcf.errors import UserError

VARIABLE = "MCF_FAULT"
HEAD = -1  # the rank of the head
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


def _starve() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": _kill,
    "stop": _stop,
    "raise": _raise,
    "exit": _exit,
    "starve": _starve,
}


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Do `action` when worker `rank` (or `HEAD`) reaches point `phase` for the `n`-th time (from 1)."""

    action: str
    rank: int
    phase: str
    n: int = 1


def _parse_one(text: str) -> Fault:
    action, *pairs = text.strip().split(":")
    given = dict(pair.partition("=")[::2] for pair in pairs)
    rank, n = given.get("rank", ""), given.get("n", "1")
    known = action in _ACTIONS and {"rank", "phase"} <= given.keys() <= {"rank", "phase", "n"}
    if not known or not given["phase"] or not (rank == "head" or rank.isdecimal()) or not n.isdecimal():
        raise UserError(f"{VARIABLE} has {text.strip()!r}: {_USAGE}; actions are {', '.join(sorted(_ACTIONS))}")
    return Fault(action=action, rank=HEAD if rank == "head" else int(rank), phase=given["phase"], n=int(n))


def parse(text: str) -> tuple[Fault, ...]:
    """Return the faults that `text` describes; none for an empty text. Raises UserError."""
    return tuple(_parse_one(part) for part in text.split(",")) if text.strip() else ()


_armed: tuple[Fault, ...] = ()
_num_reached: dict[str, int] = {}


def arm(rank: int, text: str) -> None:
    """Arm this process, worker `rank` or the `HEAD`, with its faults of `text`."""
    global _armed
    _armed = tuple(fault for fault in parse(text) if fault.rank == rank)
    _num_reached.clear()


def is_armed() -> bool:
    """Say whether this process has faults."""
    return bool(_armed)


def point(phase: str) -> None:
    """Say that the named point is reached; does what an armed fault asks for."""
    if not _armed:
        return
    _num_reached[phase] = _num_reached.get(phase, 0) + 1
    for fault in _armed:
        if fault.phase == phase and fault.n == _num_reached[phase]:
            _ACTIONS[fault.action]()
