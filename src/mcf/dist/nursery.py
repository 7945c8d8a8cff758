"""A nursery: one process that has imported what is heavy, and forks workers that need not import it again.

1. It has one thread, so that a fork copies everything: it starts with one thread for each library and refuses to be
   used (`is_ready` is False) where an import started more. Then, and where the system lacks what is needed (Linux), a
   world starts its workers as programs of their own: the nursery only saves time and memory.
2. It ends when the head does, and its workers end with it, as with a head (`mcf.dist.worker`).
3. The head holds a pidfd of each forked worker, so that a signal never meets another process; the nursery reaps a
   worker only when the head asks, which it does after the end.

This file needs the standard library alone; the nursery's process (`python -m mcf.dist.nursery`) imports the rest.
"""

import array
import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import IO, Any, NoReturn

from mcf.dist.control import Channel
from mcf.dist.limit import Limit
from mcf.dist.process import SEND_TIMEOUT_S, WorkerProcess, worker_environment

WORKER = "mcf.dist.worker"
HEAVY = ("mcf.dist.session", "mcf.dist.transport")
_MOST_BYTES = 128 << 10
_MOST_FDS = 4
_TICK_S = 0.05
_PR_SET_PDEATHSIG = 1


class ForkedProcess:
    """A forked worker as the head sees it; the part of `subprocess.Popen` that is used of it."""

    def __init__(self, pid: int, stdout: IO[bytes], nursery: "Nursery") -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = stdout
        self.returncode: int | None = None
        self._nursery = nursery
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the exit code (minus the signal's number), None while the process runs."""
        return self._wait(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a worker", timeout or 0.0)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal; does nothing after the end."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            if poller.poll(None if timeout_s is None else timeout_s * 1e3):
                self.returncode = self._nursery.reap(self.pid)
                os.close(self._pidfd)
        return self.returncode


class _Child:
    """A forked child of this process: the part of `subprocess.Popen` that is used of it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._is_reaped = False

    def poll(self) -> int | None:
        self._is_reaped = self._is_reaped or os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        return 0 if self._is_reaped else None

    def wait(self) -> int:
        if not self._is_reaped:
            os.waitpid(self.pid, 0)
            self._is_reaped = True
        return 0

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class Nursery:
    """The head's side of one nursery process. Any thread may use it."""

    def __init__(self, process: "subprocess.Popen[bytes] | _Child", sock: socket.socket) -> None:
        self._process, self._sock = process, sock
        self._lock = threading.Lock()
        self._num_threads: int | None = None
        self.is_lent = False
        self._finalizer = weakref.finalize(self, _end, process, sock)

    @classmethod
    def start(cls, *, modules: Sequence[str] = HEAVY) -> "Nursery":
        """Start a nursery, which imports `modules` meanwhile."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        is_main = threading.current_thread() is threading.main_thread()
        tie = os.getpid() if is_main else 0  # the system ends it with the thread that has started it
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "mcf.dist.nursery", str(theirs.fileno()), str(tie), *modules],
                env=worker_environment(1, {}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        return cls(process, ours)

    @classmethod
    def branch(cls) -> "Nursery":
        """Make a nursery of a copy of this process, which has one thread and has imported what workers need."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            ours.close()
            os.setsid()
            _die_with(parent)
            serve(theirs)
            os._exit(0)
        theirs.close()
        return cls(_Child(pid), ours)

    def is_ready(self, limit: Limit | None = None) -> bool:
        """Wait until its imports are done; say whether it can fork. Raises RequestTimeoutError, naming `joining`."""
        while self._num_threads is None:
            if limit is not None:
                limit.check("joining")
            if select.select([self._sock], [], [], _TICK_S)[0]:
                self._num_threads = self._greeting()
        return self._num_threads == 1 and not self.is_gone()

    def is_gone(self) -> bool:
        """Say whether its process has ended."""
        return self._process.poll() is not None

    def fork(
        self, program: str, arguments: Mapping[str, int | str], env: Mapping[str, str], fds: Mapping[str, int]
    ) -> ForkedProcess:
        """Fork a process that runs `program`'s `main` with `--name=value` for each argument and each passed descriptor.

        It gets `env` as its environment, and the number of the nursery's process as `--head`. Raises OSError when the
        nursery is gone.
        """
        change = {name: value for name, value in env.items() if os.environ.get(name) != value}
        unset = [name for name in os.environ if name not in env]
        read_end, write_end = os.pipe()
        try:
            order = {"program": program, "arguments": dict(arguments), "env": change, "unset": unset, "fds": list(fds)}
            pid = self._ask(order, [write_end, *fds.values()])["pid"]
        except BaseException:
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        return ForkedProcess(pid, open(read_end, "rb", buffering=0), self)

    def reap(self, pid: int) -> int:
        """Return the exit code of a process that has ended; that of a killed one if the nursery is gone."""
        try:
            return int(self._ask({"reap": pid}, [])["code"])
        except OSError:
            return -int(signal.SIGKILL)

    def close(self) -> None:
        """End the nursery, unless it is lent; harmless when called again."""
        if not self.is_lent:
            self._finalizer()

    def _greeting(self) -> int:
        try:
            return int(self._reply()["num_threads"])
        except OSError:
            return 0

    def _ask(self, order: Mapping[str, Any], fds: Sequence[int]) -> dict[str, Any]:
        with self._lock:
            _send(self._sock, order, fds)
            return self._reply()

    def _reply(self) -> dict[str, Any]:
        """Return the next answer. Raises OSError when the nursery is gone."""
        data = self._sock.recv(_MOST_BYTES)
        if not data:
            raise ConnectionResetError("the nursery of the workers is gone")
        found: dict[str, Any] = json.loads(data)
        return found


def fork_worker(
    nursery: Nursery,
    rank: int,
    num_workers: int,
    env: Mapping[str, str],
    meeting: socket.socket | None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> WorkerProcess:
    """Start worker `rank` from a nursery that is ready; as `mcf.dist.process.spawn` in all else."""
    ours, theirs = socket.socketpair()
    with theirs:
        fds = {"fd": theirs.fileno()} | ({} if rank or meeting is None else {"listen-fd": meeting.fileno()})
        forked = nursery.fork(WORKER, {"rank": rank, "world": num_workers, "tie": 1, **options}, env, fds)
    channel = Channel(ours, peer=f"worker {rank}", send_timeout_s=SEND_TIMEOUT_S)
    return WorkerProcess(rank=rank, popen=forked, channel=channel)


_lent: list[Nursery] = []


def lent_one() -> Nursery | None:
    """Return the nursery that was lent, if one was."""
    return _lent[-1] if _lent else None


def obtain() -> Nursery | None:
    """Return a nursery for one world after the other: the lent one, a new one, None where the system has no pidfd."""
    if _lent:
        return lent_one()
    return Nursery.start() if sys.platform == "linux" and hasattr(os, "pidfd_open") else None


@contextlib.contextmanager
def lent(nursery: Nursery) -> Any:
    """Have `obtain` return this one while entered: tests start many worlds."""
    nursery.is_lent = True
    _lent.append(nursery)
    try:
        yield nursery
    finally:
        _lent.remove(nursery)
        nursery.is_lent = False


def _end(process: "subprocess.Popen[bytes] | _Child", sock: socket.socket) -> None:
    sock.close()
    process.kill()  # it has nothing to put in order
    process.wait()


def _send(sock: socket.socket, what: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([json.dumps(what).encode()], rights)


# -- the nursery's own process -------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> None:
    """Import, say so, and fork until the head is gone."""
    fd, tie, *modules = argv
    if tie != "0":
        _die_with(int(tie))
    gc.disable()  # what imports make stays: looking for garbage among it takes a quarter of their time
    for name in (WORKER, *modules):
        importlib.import_module(name)
    gc.enable()
    serve(socket.socket(fileno=int(fd)))


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(0)


def serve(sock: socket.socket) -> None:
    """Obey the head's orders. For a process with one thread that has imported what its children need."""
    os.set_inheritable(sock.fileno(), False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    _send(sock, {"num_threads": len(os.listdir("/proc/self/task"))})
    while True:
        data, fds, _, _ = socket.recv_fds(sock, _MOST_BYTES, _MOST_FDS)
        if not data:
            return
        order = json.loads(data)
        if "reap" in order:
            _send(sock, {"code": os.waitstatus_to_exitcode(os.waitpid(order["reap"], 0)[1])})
        else:
            _send(sock, {"pid": _fork(sock, order, fds)})


def _fork(sock: socket.socket, order: Mapping[str, Any], fds: Sequence[int]) -> int:
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        sock.close()
        _grow_up(order, fds, parent)
    for fd in fds:
        os.close(fd)
    return pid


def _grow_up(order: Mapping[str, Any], fds: Sequence[int], parent: int) -> NoReturn:
    """Become what was ordered: a session, output, environment and threads of its own, then the program."""
    code = 1
    try:
        output, *rest = fds
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        for name in order["unset"]:
            os.environ.pop(name, None)
        os.environ.update(order["env"])
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
        arguments = {**order["arguments"], **dict(zip(order["fds"], rest, strict=True)), "head": parent}
        sys.modules[order["program"]].main([f"--{name}={value}" for name, value in arguments.items()])
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
