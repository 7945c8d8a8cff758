"""Where the ranks of a world over TCP run, and how they end: processes that a nursery forks, without a launcher.

A place is this machine's loopback, or a network namespace as a host (root; `tests/netns.py` makes them). Rank r runs on
place r modulo their number; rank 0 serves the store.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psutil

from mcf.dist.nursery import ForkedProcess

WAKE_S = 1.0  # how long a short stop lasts
_TICK_S = 0.005
_ports = iter(range(29500, 32000))


@dataclass(frozen=True, kw_only=True)
class Place:
    """One host: a network namespace (empty: this process's own) and its address."""

    netns: str
    address: str


LOOPBACK = (Place(netns="", address="127.0.0.1"),)


@dataclass(kw_only=True)
class Ended:
    """How one process ended: exit code, when, and all that it printed."""

    code: int
    at_s: float
    out: str


@dataclass(kw_only=True)
class Party:
    """The processes of one world: rank 0 (of a local world the head, and nobody else), then the others."""

    ranks: list[ForkedProcess]
    stopped_s: dict[int, float] = field(default_factory=dict)

    def watch(self, until_s: float, kind: str) -> dict[int, float]:
        """Wait until rank 0 has ended; return when each rank did.

        After an accident of a kind that stops, the stopped ranks are noted; those of a short stop are woken.
        """
        ends: dict[int, float] = {}
        while 0 not in ends and time.monotonic() < until_s:
            for rank, process in enumerate(self.ranks):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = time.monotonic()
                elif rank not in ends and kind.startswith("stop"):
                    self._look(rank, process, kind == "stop short")
            time.sleep(_TICK_S)
        return ends

    def collect(self, rank: int, patience_s: float) -> Ended:
        """Wake a rank if it is stopped, wait for its end, and return what came of it; 1000 if it had to be killed."""
        process = self.ranks[rank]
        process.send_signal(signal.SIGCONT)
        try:
            code = process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            code = 1000
        at_s = time.monotonic()
        assert process.stdout is not None
        with process.stdout:
            os.set_blocking(process.stdout.fileno(), False)  # what was printed is here; an orphan may hold the end
            out = process.stdout.read() or b""
        return Ended(code=code, at_s=at_s, out=out.decode())

    def _look(self, rank: int, process: ForkedProcess, is_waking: bool) -> None:
        if not _is_stopped(process.pid):
            return
        now_s = time.monotonic()
        if now_s - self.stopped_s.setdefault(rank, now_s) > WAKE_S and is_waking:
            process.send_signal(signal.SIGCONT)


def variables(num_workers: int, places: Sequence[Place]) -> Iterator[tuple[dict[str, str], Place]]:
    """Yield what a launcher would tell each rank, and where it runs."""
    port = _free_port() if places is LOOPBACK else next(_ports)
    for rank in range(num_workers):
        place = places[rank % len(places)]
        yield (
            {
                "RANK": str(rank),
                "WORLD_SIZE": str(num_workers),
                "LOCAL_WORLD_SIZE": str(len(range(rank % len(places), num_workers, len(places)))),
                "MASTER_ADDR": places[0].address,
                "MASTER_PORT": str(port),
            },
            place,
        )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
