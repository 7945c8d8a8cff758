"""A worker process: `python -m mcf.dist.worker`, started by `mcf.dist.world` and by nothing else.

Three threads: the main thread obeys frames one after the other; one thread reads frames, one sends heartbeats. The two
start before anything heavy is imported and need the standard library alone. They also end the process (`os._exit`)
when the head is gone, whatever the main thread is doing: a wait inside Gloo cannot be interrupted otherwise.
"""

import argparse
import ctypes
import importlib.metadata
import os
import platform
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from mcf.dist import faults, memory
from mcf.dist.brake import Brake
from mcf.dist.control import PROTOCOL, Channel, ChannelClosedError, Frame
from mcf.dist.examine import Examiner
from mcf.errors import McfError, TransportError, UserError

if TYPE_CHECKING:
    from mcf.dist.session import Reply, Session

LOOPBACK = "127.0.0.1"
BEAT_S = 0.5
_LEAVE_S = 0.5
_MESSAGE_CHARS = 4096
_TRACE_CHARS = 32768
_PR_SET_PDEATHSIG = 1
_VERSIONED = ("mcf", "numpy", "torch", "transformers")

Inbox = queue.SimpleQueue[Frame]


class Obeys(Protocol):
    """What obeys frames after joining: `mcf.dist.session.Session`, or a stand-in in tests."""

    def handle(self, frame: Frame, reply: "Reply", /) -> None:
        """Obey one frame; what it raises becomes an `error` frame."""


Join = Callable[[Frame, argparse.Namespace, Brake], Obeys]


def versions() -> dict[str, str]:
    """Return the versions that head and workers must share, without importing anything."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found


def main(argv: Sequence[str] | None = None, *, join: Join | None = None) -> NoReturn:
    """Join the head that started this process, obey it until it says shutdown, and leave.

    `join` makes the session that obeys, from the `join` frame and the options; by default it joins over Gloo.
    """
    options = _parse(argv)
    memory.leave_when_refused()
    faults.arm(options.rank, os.environ.get(faults.VARIABLE, ""))
    faults.point("start")
    channel = Channel(socket.socket(fileno=options.fd), peer="the head")
    os.set_inheritable(options.fd, False)
    if options.tie:
        _die_with_head(options.head)
    inbox: Inbox = queue.SimpleQueue()
    brake = Brake()
    threading.Thread(target=_read_frames, args=(channel, inbox, brake), name="mcf-reader", daemon=True).start()
    threading.Thread(target=_beat, args=(channel, options.head), name="mcf-beat", daemon=True).start()
    channel.send("hello", rank=options.rank, pid=os.getpid(), protocol=PROTOCOL, versions=versions())
    try:
        _obey_all(channel, inbox, lambda frame: (join or join_gloo)(frame, options, brake))
    except BaseException as exc:  # an error that cannot be sent; waiting threads must not keep this process
        if memory.is_out_of_memory(exc):
            os._exit(memory.EXIT_CODE)
        traceback.print_exc()
        _leave(1)
    faults.point("shutdown")
    _leave(0)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mcf.dist.worker", description="A worker of mcf; started by the head.")
    for name in ("rank", "world", "fd", "head"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--tie", type=int, default=0, help="1: ask the system to kill this process with the head")
    parser.add_argument("--listen-fd", type=int, default=-1, help="rank 0: the socket on which the workers meet")
    parser.add_argument("--host", default=LOOPBACK, help="where the store is in which the workers meet")
    parser.add_argument("--address", default=LOOPBACK, help="this host's address for tensors")
    return parser.parse_args(argv)


def _die_with_head(head: int) -> None:
    """Ask Linux to kill this process when the head's thread that started it (its main thread) ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != head:
        _leave(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _read_frames(channel: Channel, inbox: Inbox, brake: Brake) -> None:
    try:
        while (frame := channel.recv()) is not None:
            if not obey_brake(frame, channel, brake):
                inbox.put(frame)
            if frame.type == "shutdown":
                time.sleep(_LEAVE_S)  # the main thread's chance to leave by itself
                break
    except ChannelClosedError:
        pass  # the head is gone, and nobody is left to tell
    except TransportError as exc:
        print(f"worker: {exc}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def obey_brake(frame: Frame, channel: Channel, brake: Brake) -> bool:
    """Obey what the reading thread itself must; return whether that was all there is to do with the frame."""
    if frame.type == "hold":
        channel.send("held", chunk=brake.hold())
    elif frame.type == "stop_after":
        brake.stop_after(frame["chunk"])
    elif frame.type == "prefill":
        brake.reset()
    return frame.type in ("hold", "stop_after")


def _beat(channel: Channel, head: int) -> None:
    try:
        while os.getppid() == head:
            channel.send("beat")
            time.sleep(BEAT_S)
    except TransportError:
        pass
    os._exit(0)


def _obey_all(channel: Channel, inbox: Inbox, join: Callable[[Frame], Obeys]) -> None:
    session: Obeys | None = None
    examiner = Examiner()
    while (frame := inbox.get()).type != "shutdown":
        try:
            if frame.type == "join":
                faults.point("joining")
                session = join(frame)
                channel.send("joined")
            elif examiner.can_obey(frame.type):
                examiner.handle(frame, channel.send)
            elif session is None:
                raise TransportError(f"frame {frame.type!r} came before 'join'")
            else:
                session.handle(frame, channel.send)
        except Exception as exc:
            channel.send("error", **error_fields(exc, frame.type))


def join_gloo(frame: Frame, options: argparse.Namespace, brake: Brake) -> "Session":
    """Import what is heavy, meet the other workers, and return what obeys from now on."""
    from mcf.dist.session import Session
    from mcf.dist.transport import GlooTransport

    transport = GlooTransport(
        rank=options.rank,
        world_size=options.world,
        port=frame["port"],
        listen_fd=options.listen_fd,
        timeout_s=frame["timeout_s"],
        host=options.host,
        address=options.address,
        prefix=frame.fields.get("prefix", ""),
    )
    return Session(transport, brake)


def error_fields(exc: Exception, doing: str = "") -> dict[str, Any]:
    """Return the `error` frame of what was raised while obeying frame `doing`; the traceback is for --debug."""
    text = " ".join(str(exc).split())[:_MESSAGE_CHARS]
    is_ours = isinstance(exc, McfError)
    is_memory = memory.is_out_of_memory(exc)
    fields: dict[str, Any] = {
        "kind": memory.KIND if is_memory else type(exc).__name__,
        "message": memory.in_words(text, doing) if is_memory else text if is_ours else f"{type(exc).__name__}: {text}",
        "user": isinstance(exc, UserError) and not is_memory,
        "trace": "".join(traceback.format_exception(exc))[-_TRACE_CHARS:],
    }
    peer = getattr(exc, "peer", None)
    return fields if peer is None else {**fields, "peer": peer}


if __name__ == "__main__":
    main()
