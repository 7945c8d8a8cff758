"""The head's and the guests' common beginning: the interface, the launcher's store, and who waits for whom.

Importing this file imports nothing heavy; torch comes when a run over hosts begins.
"""

import json
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mcf.dist import faults
from mcf.dist.lobby import Lobby
from mcf.dist.torchrun import Place
from mcf.dist.way import Way, choose, network_addresses
from mcf.errors import RunError, TransportError, UserError

if TYPE_CHECKING:
    from mcf.dist.transport import Board

JOIN_S = 120.0
STORE_S = 30.0
_HINT_S = 10.0
_PAUSE_S = 0.1
_LOOK_S = 0.5
Say = Callable[[str], None]
_was_used = False


def say(line: str) -> None:
    """Print one line to stderr."""
    print(line, file=sys.stderr, flush=True)


def arrive(place: Place, named: str | None, *, say: Say = say) -> tuple[Way, "Board"]:
    """Choose this process's interface, say so, and open the launcher's store.

    Raises UserError for an interface or address that cannot be, TransportError for a store that is not there, RunError
    when this world has been used already: its workers leave with the run.
    """
    global _was_used
    if _was_used:
        refuse_another_run()
    _was_used = True
    interface = choose(place.master_addr, named=named)
    where = f"{interface.address} over {interface.name}"
    say(f"worker {place.rank} of {place.world_size} on {socket.gethostname()}: {where}")
    board = open_board(place)
    board.post(f"host/{place.rank}", host_identity())
    return interface, board


def refuse_another_run() -> NoReturn:
    """Raise RunError: the other workers' processes have left."""
    raise RunError("this torchrun world has had its run and its workers have left: start torchrun again")


class Hosts:
    """What the head needs to let the workers of other hosts in.

    `fingerprint` is the head's own model's, still to come; `dtype` its type of numbers.
    """

    def __init__(
        self,
        place: Place,
        interface: Way,
        board: "Board",
        *,
        dtype: str,
        fingerprint: Future[str],
        say: Say = say,
    ) -> None:
        self.place, self.dtype, self.fingerprint = place, dtype, fingerprint
        self._interface, self._board, self._say = interface, board, say
        self._start_s = time.monotonic()
        self._looked_s = -math.inf
        self._has_hinted = False
        self.tensor_prefix = f"{_prefix(place)}/tensors"
        self.lobby = Lobby(interface.address, range(1, place.world_size))
        found = {"address": self.lobby.address, "port": self.lobby.port, "token": self.lobby.token.hex()}
        board.post("head", json.dumps(found))

    @property
    def address(self) -> str:
        """Where the others reach this host."""
        return self._interface.address

    @property
    def worker_options(self) -> Mapping[str, str]:
        """Options of the local worker's program."""
        return {"host": self.place.master_addr, "address": self._interface.address}

    def is_waiting(self) -> bool:
        """Return whether workers are missing. Raises RunError when one cannot come or the time is up."""
        now_s = time.monotonic()
        if not self.lobby.missing:
            return False
        if now_s - self._looked_s > _LOOK_S:
            self._looked_s = now_s
            self._look_for_failures()
        if now_s - self._start_s > JOIN_S:
            raise TransportError(
                f"{self._missing()} did not join within {JOIN_S:.0f} s: expected the same command on each host, and "
                f"TCP from there to {self.lobby.address}:{self.lobby.port}; see what they printed"
            )
        if now_s - self._start_s > _HINT_S and not self._has_hinted:
            self._has_hinted = True
            self._say(f"still waiting for {self._missing()}")
        return True

    def close(self) -> None:
        """Stop listening; say what callers there were that belonged to no worker. Harmless when called again."""
        self.lobby.close()
        line, self.lobby.num_dropped = self.lobby.dropped_in_words(), 0
        if line:
            self._say(line)

    def _missing(self) -> str:
        return f"workers {', '.join(map(str, sorted(self.lobby.missing)))} of {self.place.world_size}"

    def _look_for_failures(self) -> None:
        for rank in sorted(self.lobby.missing):
            _raise_failed(self._board, rank)


def check_address(place: Place, interface: Way, board: "Board") -> None:
    """Head: refuse a loopback address while there are workers on other hosts, and tell them.

    On Debian a host's own name often leads to 127.0.1.1 in its own /etc/hosts, and to its real address elsewhere.
    """
    if not interface.is_loopback or interface.is_asked or not place.spans_hosts:
        return
    deadline_s = time.monotonic() + JOIN_S
    for rank in range(1, place.world_size):
        while (host := board.read(f"host/{rank}")) is None:
            if time.monotonic() > deadline_s:
                raise TransportError(f"worker {rank} did not join within {JOIN_S:.0f} s: see what it printed")
            _raise_failed(board, rank)
            time.sleep(_PAUSE_S)
        if host != host_identity():
            error = UserError(
                f"MASTER_ADDR {place.master_addr!r} is the loopback address {interface.address} on its own host, and "
                f"worker {rank} is on another: expected an address that all hosts reach; give torchrun --master-addr "
                f"one of this host's addresses ({network_addresses()}), or name an interface with --interface"
            )
            board.post("head", json.dumps({"refused": str(error)}))
            raise error


def _raise_failed(board: "Board", rank: int) -> None:
    """Raise what a worker, or its witness, has left in the store instead of coming."""
    if (text := board.read(f"failed/{rank}")) is not None:
        raise RunError(f"worker {rank} could not join: {text}")


def host_identity() -> str:
    """Return a text that is the same for processes that share loopback: the boot and the network namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()


def _prefix(place: Place) -> str:
    return f"mcf/{place.attempt}"


def open_board(place: Place) -> "Board":
    """Open the launcher's store, which takes the import of torch. Raises UserError and TransportError."""
    listen_fd = -1
    if not place.has_agent_store and not place.is_guest:
        listen_fd = _serve_store(place)
    else:
        _wait_for_store(place)
    faults.point("importing")
    from mcf.dist.transport import Board

    return Board(place.master_addr, place.master_port, prefix=_prefix(place), listen_fd=listen_fd)


def _serve_store(place: Place) -> int:
    """Listen at MASTER_ADDR alone for a launcher that leaves the store to rank 0; return the descriptor."""
    try:
        return socket.create_server((place.master_addr, place.master_port)).detach()
    except OSError as error:
        raise UserError(
            f"rank 0 cannot serve the store at {place.master_addr}:{place.master_port} ({error.strerror}): expected "
            "MASTER_ADDR to be an address of this host and MASTER_PORT to be free"
        ) from None


def _wait_for_store(place: Place) -> None:
    """Wait until something listens there: torch's own client prints pages of C++ frames where nothing does."""
    deadline_s = time.monotonic() + STORE_S
    while True:
        try:
            socket.create_connection((place.master_addr, place.master_port), timeout=STORE_S).close()
            return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise TransportError(
                    f"worker {place.rank} cannot reach the store at {place.master_addr}:{place.master_port} "
                    f"({error.strerror or error}): expected MASTER_ADDR and MASTER_PORT of the host of rank 0"
                ) from None
            time.sleep(_PAUSE_S)
