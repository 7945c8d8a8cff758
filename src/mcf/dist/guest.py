"""Worker r of a run over several hosts: the process of rank r >= 1 itself, in the same three threads as a local worker.

1. It finds the head through the launcher's store, proves itself (`mcf.dist.handshake`) and says hello.
2. The main thread obeys. One thread reads: it notices a head that closed without `shutdown`, that gave up (`abort`), or
   that sent nothing for `HEAD_SILENT_S`. One thread sends heartbeats.
3. The end: after `shutdown` SystemExit(0); else the error that this worker has had itself, or a RunError. A main thread
   that cannot be interrupted (it waits inside Gloo) has `_LEAVE_S` before the reading thread ends the process.
"""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from mcf.dist import faults, handshake
from mcf.dist.brake import Brake
from mcf.dist.control import PROTOCOL, Channel, ChannelClosedError, Frame
from mcf.dist.examine import Examiner
from mcf.dist.torchrun import Place
from mcf.dist.way import Way
from mcf.dist.witness import Witness
from mcf.dist.worker import BEAT_S, error_fields, obey_brake, versions
from mcf.errors import McfError, RunError, TransportError, UserError

if TYPE_CHECKING:
    from mcf.dist.session import Session
    from mcf.dist.transport import Board

HEAD_SILENT_S = 6.0
FIND_S = 600.0  # the head may still be doing other things: the store tells when it is gone
KNOCK_S = 20.0
_LEAVE_S = 0.5
_TICK_S = 0.5
_PAUSE_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Own:
    """What this host has of its own: the model's folder and fingerprint."""

    folder: Path
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Guest:
    """What a worker on another host is made of.

    `find_model` looks for the model on this host; the `witness` goes once the head sees this process.
    """

    place: Place
    interface: Way
    dtype: str
    num_threads: int
    find_model: Callable[[], Own]
    witness: Witness | None = None

    def serve(self, board: "Board") -> NoReturn:
        """Join the head, obey it, and raise SystemExit(0) after its shutdown. Raises UserError and RunError kinds."""
        faults.point("start")
        try:
            line = _Line(_connect(board, self.place.rank), self.place.rank)
        except McfError as error:
            board.post(f"failed/{self.place.rank}", str(error))
            raise
        finally:
            if self.witness is not None:
                self.witness.dismiss()
        line.start()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # no handler runs in a wait inside Gloo
                if signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
        hello = {"rank": self.place.rank, "pid": os.getpid(), "protocol": PROTOCOL, "versions": versions()}
        line.channel.send("hello", host=socket.gethostname(), dtype=self.dtype, **hello)
        self._obey_all(line)
        faults.point("shutdown")
        raise SystemExit(0)

    def _obey_all(self, line: "_Line") -> None:
        session: Session | None = None
        own: Own | None = None
        examiner = Examiner()
        try:
            own = self.find_model()
            line.channel.send("model", fingerprint=own.fingerprint)
        except Exception as error:
            line.fail(error)
        while (frame := line.next()) is not None:
            try:
                if frame.type == "join":
                    faults.point("joining")
                    assert own is not None, "the head goes on without a model"
                    session = self._join(frame, own, line.brake)
                    line.channel.send("joined")
                elif examiner.can_obey(frame.type):
                    examiner.handle(frame, line.channel.send)
                elif session is None:
                    raise TransportError(f"frame {frame.type!r} came before 'join'")
                else:
                    session.handle(frame, line.channel.send)
            except ChannelClosedError:
                continue  # the reading thread says why
            except Exception as error:
                line.fail(error, frame.type)

    def _join(self, frame: Frame, own: Own, brake: Brake) -> "Session":
        from mcf.dist.session import Session
        from mcf.dist.transport import GlooTransport

        transport = GlooTransport(
            rank=self.place.rank,
            world_size=self.place.world_size,
            host=self.place.master_addr,
            port=frame["port"],
            prefix=frame["prefix"],
            address=self.interface.address,
            timeout_s=frame["timeout_s"],
        )
        return Session(transport, brake, folder=own.folder, num_threads=self.num_threads)


class _Line:
    """The connection to the head with its two threads, and how it ended."""

    def __init__(self, channel: Channel, rank: int) -> None:
        self.channel = channel
        self.brake = Brake()
        self._rank = rank
        self._failure: Exception | None = None
        self._end: SystemExit | Exception | None = None
        self._is_picked_up = threading.Event()
        self._inbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start reading and beating."""
        threading.Thread(target=self._read, name="mcf-reader", daemon=True).start()
        threading.Thread(target=self._beat, name="mcf-beat", daemon=True).start()

    def next(self) -> Frame | None:
        """Wait for one frame; None after the head's shutdown. Raises what else has ended the run."""
        frame = self._inbox.get()
        if frame is None:
            self._is_picked_up.set()
            if self._end is not None:
                raise self._end
        return frame

    def fail(self, error: Exception, doing: str = "") -> None:
        """Tell the head what went wrong here while obeying frame `doing`; it ends the run."""
        self._failure = self._failure or error
        with contextlib.suppress(TransportError):  # the reading thread says why
            self.channel.send("error", **error_fields(error, doing))

    def _read(self) -> None:
        try:
            reason = self._read_until_the_end()
        except ChannelClosedError:
            reason = "its connection closed without a shutdown: it ended or was killed"
        except TransportError as error:
            reason = f"it sent garbage: {error}"
        if reason is not None:
            self._end = self._failure or RunError(f"worker {self._rank} lost the head: {reason}")
        self._leave()

    def _read_until_the_end(self) -> str | None:
        """Hand frames to the main thread; return why the head is lost, None after a shutdown."""
        while True:
            frame = self.channel.recv(_TICK_S)
            silent_s = time.monotonic() - self.channel.heard_s
            if frame is None and silent_s > HEAD_SILENT_S:
                return f"no heartbeat for {silent_s:.1f} s"
            if frame is None or frame.type == "beat":
                continue
            if frame.type == "abort":
                return f"it ended the run: {frame['why']}"
            if frame.type == "shutdown":
                return None
            if not obey_brake(frame, self.channel, self.brake):
                self._inbox.put(frame)

    def _leave(self) -> None:
        """Let the main thread end the process; do it here where that cannot."""
        self._inbox.put(None)
        if self._is_picked_up.wait(_LEAVE_S):
            return
        code = 0 if self._end is None else 2 if isinstance(self._end, UserError) else 1
        if self._end is not None:
            print(f"error: {' '.join(str(self._end).split())}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _beat(self) -> None:
        try:
            while not self._is_picked_up.wait(BEAT_S):
                self.channel.send("beat")
        except TransportError:
            pass  # the reading thread says why


def _connect(board: "Board", rank: int) -> Channel:
    """Find the head, connect to it and prove both sides to each other."""
    found = _find_head(board)
    where = f"the head's control port {found['address']}:{found['port']}"
    try:
        sock = socket.create_connection((found["address"], int(found["port"])), timeout=KNOCK_S)
        _prove(sock, bytes.fromhex(found["token"]), rank)
    except OSError as error:
        raise TransportError(
            f"worker {rank} cannot reach {where} ({error.strerror or error}): expected the network to let TCP through "
            "between the hosts on any port above 1023; see docs/hosts.md"
        ) from None
    except ValueError as error:
        raise TransportError(f"worker {rank} does not trust {where}: {error}") from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Channel(sock, peer="the head")


def _find_head(board: "Board") -> dict[str, str]:
    """Wait for what the head posts: its address, port and token, or why it does not take part."""
    deadline_s = time.monotonic() + FIND_S
    while (text := board.read("head")) is None:
        if time.monotonic() > deadline_s:
            raise TransportError(f"the head (rank 0) did not start a run within {FIND_S:.0f} s: see what it printed")
        time.sleep(_PAUSE_S)
    found: dict[str, str] = json.loads(text)
    if "refused" in found:
        raise RunError(f"the head cannot take part: {found['refused']}")
    return found


def _prove(sock: socket.socket, token: bytes, rank: int) -> None:
    challenge = _receive(sock, handshake.CHALLENGE_BYTES)
    answer = handshake.answer(token, rank, challenge)
    if answer is None:
        raise ValueError("it does not begin as a head of MCF does")
    sock.sendall(answer)
    if not handshake.is_proof(token, challenge, answer, _receive(sock, handshake.PROOF_BYTES)):
        raise ValueError("it does not know the token of this run")


def _receive(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        more = sock.recv(num_bytes - len(data))
        if not more:
            raise ValueError("it hung up")
        data += more
    return data
