"""The doctor's hands on one node: frames that a worker obeys before it joins and imports anything heavy.

examine   what the machine and its network are like; the fingerprint of a model folder
clock     what this node's clocks say now
listen    open a port on an address, for the others to try (loopback unless the head names another)
reach     try the ports of other nodes
unlisten  close that port
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mcf.dist import interfaces, machine
from mcf.dist.control import Frame
from mcf.dist.fingerprint import fingerprint

REACH_S = 2.0
_TOKEN_BYTES = 16
Answer = Callable[..., None]


class Examiner:
    """Obeys the doctor's frames; holds at most one listening port."""

    def __init__(self) -> None:
        self._port: socket.socket | None = None
        self._handlers = {
            "examine": self._examine,
            "clock": self._clock,
            "listen": self._listen,
            "reach": self._reach,
            "unlisten": self._unlisten,
        }

    def can_obey(self, type: str) -> bool:
        """Say whether a frame of that type is one of these."""
        return type in self._handlers

    def handle(self, frame: Frame, reply: Answer) -> None:
        """Obey one frame, answering through `reply`."""
        self._handlers[frame.type](frame, reply)

    def _examine(self, frame: Frame, reply: Answer) -> None:
        found = interfaces.facts(frame["peers"]) | machine.facts(Path(frame["cache"]).expanduser())
        reply("examined", facts={**found, "pid": os.getpid(), "fingerprint": _fingerprint(frame["folder"])})

    def _clock(self, frame: Frame, reply: Answer) -> None:
        reply("clocked", wall_s=time.time(), monotonic_s=time.monotonic())

    def _listen(self, frame: Frame, reply: Answer) -> None:
        self._close()
        try:
            self._port = socket.create_server((frame["address"], 0))
        except OSError as exc:
            reply("listening", port=0, why=_reason(exc))
            return
        threading.Thread(target=_answer_all, args=(self._port, frame["token"]), name="mcf-port", daemon=True).start()
        reply("listening", port=self._port.getsockname()[1], why="")

    def _reach(self, frame: Frame, reply: Answer) -> None:
        results = [[rank, *_try(address, port, frame["token"])] for rank, address, port in frame["targets"]]
        reply("reached", results=results)

    def _unlisten(self, frame: Frame, reply: Answer) -> None:
        self._close()
        reply("unlistened")

    def _close(self) -> None:
        if self._port is not None:
            with contextlib.suppress(OSError):
                self._port.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            self._port.close()
            self._port = None


def _fingerprint(folder: str) -> str:
    """Return the fingerprint of a model folder, "" where none is asked for, else why there is none."""
    if not folder:
        return ""
    try:
        return fingerprint(Path(folder))
    except (OSError, ValueError) as exc:
        return f"none: {_reason(exc) if isinstance(exc, OSError) else exc}"


def _answer_all(port: socket.socket, token: str) -> None:
    """Show the token to whoever connects, until the port is closed."""
    while True:
        try:
            peer, _ = port.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), peer:
            peer.settimeout(REACH_S)
            peer.sendall(token.encode()[:_TOKEN_BYTES].ljust(_TOKEN_BYTES))


def _try(address: str, port: int, token: str) -> tuple[str, float]:
    """Connect and read the token: ("" or why not, seconds it took)."""
    begin_s = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=REACH_S) as peer:
            got = peer.recv(_TOKEN_BYTES, socket.MSG_WAITALL)
    except OSError as exc:
        return _reason(exc), time.monotonic() - begin_s
    right = got == token.encode()[:_TOKEN_BYTES].ljust(_TOKEN_BYTES)
    return "" if right else "another program answers there", time.monotonic() - begin_s


def _reason(exc: OSError) -> str:
    return exc.strerror or str(exc) or type(exc).__name__
