"""A witness: a process beside a worker of another host that tells the head if the worker ends before they have met.

Until a worker has imported torch it can neither find the head nor be seen by it, so that its end would be noticed only
when the time to join is over. The witness is started before that import and sleeps. If the worker ends first, it
imports torch in the worker's place and leaves a line in the launcher's store, which the head reads; where the store has
gone, so has the head, and the witness leaves at once. It is in a session of its own, because a launcher ends the
sessions of its workers; it lives no longer than `LIFE_S` after the worker.
"""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mcf.dist import faults
from mcf.dist.hosts import arrive, open_board
from mcf.dist.process import worker_environment
from mcf.dist.torchrun import Place, here
from mcf.dist.way import Way

if TYPE_CHECKING:
    from mcf.dist.transport import Board

LIFE_S = 30
STORE_S = 1.0  # for a store that is about to open
_PAUSE_S = 0.1
_MET = b"."


class Witness:
    """The worker's side: a witness that runs until `dismiss`, or until this process ends."""

    def __init__(self) -> None:
        """Start the witness. Harmless where that is not possible: the head then waits for the time to join."""
        read_end, self._write_end = os.pipe()
        with contextlib.suppress(OSError):
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "mcf.dist.witness", str(read_end), str(os.getpid())],
                env=worker_environment(1, {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[read_end],
                start_new_session=True,
            )
        os.close(read_end)

    def dismiss(self) -> None:
        """Say that the head sees this process itself now."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, _MET)
        os.close(self._write_end)
        if hasattr(self, "_popen"):
            self._popen.wait()


def arrive_watched(place: Place, named: str | None, fault: str | None = None) -> tuple[Way, "Board", Witness]:
    """A worker of another host: arm the faults and arrive (see `mcf.dist.hosts.arrive`), with a witness beside it."""
    faults.arm(place.rank, os.environ.get(faults.VARIABLE, "") if fault is None else fault)
    witness = Witness()
    return *arrive(place, named), witness


def main(argv: Sequence[str]) -> None:
    """Sleep until the worker says that it has met the head, or ends; then tell the head."""
    fd, pid = map(int, argv)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if os.read(fd, 1) == _MET:
        return
    signal.alarm(LIFE_S)
    place = here()
    assert place is not None, "a witness has its worker's variables"
    if _is_open(place, STORE_S):
        importlib.import_module("mcf.dist.transport")  # seconds, in which the head may leave
        if _is_open(place, 0.0):
            open_board(place).post(f"failed/{place.rank}", last_words(pid))


def _is_open(place: Place, patience_s: float) -> bool:
    """Return whether something listens where the store is to be."""
    until_s = time.monotonic() + patience_s
    while True:
        try:
            socket.create_connection((place.master_addr, place.master_port), timeout=STORE_S).close()
            return True
        except OSError:
            if time.monotonic() >= until_s:
                return False
            time.sleep(_PAUSE_S)


def last_words(pid: int) -> str:
    """Return what the head is told of a worker that ended too early."""
    return (
        f"its process {pid} on {socket.gethostname()} ended or was killed before it met the head; see what it or its "
        "launcher printed there, then start all again"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
