"""One worker process as the head sees it: started, watched, ended. Knows nothing of messages' meaning."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Protocol

import mcf
from mcf.dist.control import Channel
from mcf.dist.memory import CURE, EXIT_CODE, in_words, num_oom_kills

SEND_TIMEOUT_S = 4.0
_LOG_BYTES = 64 << 10
_LINE_CHARS = 200
_END_S = 0.5  # a process whose channel has closed is about to end
_LOG_S = 0.5  # its last words are in the pipe
_REAP_S = 2.0
_KILL_CURE = "see what ends processes here, then run again"
_CRASH_CURE = "run again, and report it if it happens again"
_SENT_BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_OOM_KILLS_AT_START = num_oom_kills()
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LogTail(threading.Thread):
    """Drains what a worker prints and keeps the last 64 KiB, so that no worker ever blocks on it."""

    def __init__(self, pipe: IO[bytes]) -> None:
        super().__init__(name="mcf-worker-log", daemon=True)
        self._pipe = pipe
        self._data = b""
        self.start()

    def run(self) -> None:
        """Read until the worker has closed its end."""
        with self._pipe:
            while data := os.read(self._pipe.fileno(), _LOG_BYTES):
                self._data = (self._data + data)[-_LOG_BYTES:]

    def text(self) -> str:
        """Return what is kept."""
        return self._data.decode(errors="replace")

    def last_line(self) -> str:
        """Return the last line that is not blank, shortened; empty if there is none."""
        lines = [line.strip() for line in self.text().splitlines() if line.strip()]
        return lines[-1][-_LINE_CHARS:] if lines else ""


class Running(Protocol):
    """What is used of a `subprocess.Popen`; a worker from a nursery has it too."""

    pid: int
    stdout: IO[bytes] | None

    @property
    def returncode(self) -> Any:
        """The exit code, None before the end was seen."""

    def poll(self) -> int | None:
        """Return the exit code, minus the signal's number, None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal; does nothing after the end."""


class WorkerProcess:
    """A worker: its process, its control channel and the tail of what it prints. One of `mcf.dist.ends.WorkerEnd`."""

    host = ""  # this one

    def __init__(self, *, rank: int, popen: Running, channel: Channel) -> None:
        assert popen.stdout is not None
        self.rank = rank
        self.popen = popen
        self.channel = channel
        self.log = LogTail(popen.stdout)

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def is_dead(self) -> bool:
        """Return whether the process has ended; reaps it."""
        return self.popen.poll() is not None

    def is_stopped(self) -> bool:
        """Return whether the process is stopped (SIGSTOP, Ctrl-Z), where the system tells."""
        try:
            status = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return status.rpartition(")")[2].split()[0] in ("T", "t")

    def was_killed(self) -> bool:
        """Return whether a signal has ended the process."""
        return (self.popen.poll() or 0) < 0

    def may_be_silent_while_starting(self) -> bool:
        """Return whether it may: loading a library can keep its threads from running; one that is stopped may not."""
        return not self.is_stopped()

    def why_lost(self) -> str:
        """Return how the process ended, with the last line it printed, and a cure. Waits up to 0.5 s for its end."""
        try:
            code = self.popen.wait(_END_S)
        except subprocess.TimeoutExpired:
            return f"it closed its control channel; {_CRASH_CURE}"
        self.log.join(_LOG_S)
        line = self.log.last_line()
        return "; ".join(filter(None, (exit_text(code), f"its last line: {line}" if line else "", cure_for(code))))

    def printed(self) -> str:
        """Return the tail of what it has printed."""
        return self.log.text()

    def has_left(self) -> bool:
        """Return whether the process has ended; reaps it."""
        return self.is_dead()

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.popen.send_signal(signal.SIGTERM)  # does nothing once the process has been reaped

    def cut(self, why: str) -> None:
        """Kill the process."""
        self.popen.send_signal(signal.SIGKILL)

    def reap(self) -> None:
        """Wait for the process's end and close the channel."""
        with contextlib.suppress(subprocess.TimeoutExpired):  # only a process stuck in the kernel
            self.popen.wait(_REAP_S)
        self.channel.close()
        self.log.join(_LOG_S)


def cure_for(code: int) -> str:
    """Return what to do about a process's end; empty where `exit_text` says it already."""
    if code == EXIT_CODE or exit_text(code).endswith(CURE):
        return ""
    return _KILL_CURE if -code in _SENT_BY_OTHERS else _CRASH_CURE


def exit_text(code: int) -> str:
    """Return a process's end in words: `killed by SIGKILL`, `exit code 3`."""
    if code == EXIT_CODE:
        return in_words("", "")
    if code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"killed by {name}" + (_why_sigkill() if -code == signal.SIGKILL else "")


def _why_sigkill() -> str:
    """Return whether the system has killed processes for want of memory since this one started, where it tells."""
    now = num_oom_kills()
    if now is None or _OOM_KILLS_AT_START is None:
        return " (out of memory?)"
    return f", for want of memory: {CURE}" if now > _OOM_KILLS_AT_START else ", by another process"


def worker_environment(num_threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with the thread counts, the way to this `mcf`, and `extra`."""
    home = Path(mcf.__file__).resolve().parent.parent
    is_installed = home.name in ("site-packages", "dist-packages")  # found anyway, and must not come before stdlib
    paths = [*([] if is_installed else [str(home)]), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    threads = dict.fromkeys(_THREAD_VARIABLES, str(num_threads))
    return {**os.environ, **threads, "PYTHONPATH": os.pathsep.join(paths), **extra}


def spawn(
    rank: int,
    num_workers: int,
    command: Sequence[str],
    env: Mapping[str, str],
    meeting: socket.socket | None,
    options: Mapping[str, str] = MappingProxyType({}),
) -> WorkerProcess:
    """Start worker `rank` in a session of its own; rank 0 inherits `meeting`, the listening socket of the workers.

    `options` are further options of the worker program.
    """
    ours, theirs = socket.socketpair()
    is_main = threading.current_thread() is threading.main_thread()
    listen = [] if rank or meeting is None else [meeting.fileno()]
    given = {"rank": rank, "world": num_workers, "fd": theirs.fileno(), "head": os.getpid(), "tie": int(is_main)}
    text = [f"--{name}={value}" for name, value in [*given.items(), *options.items()]]
    text += [f"--listen-fd={fd}" for fd in listen]
    with theirs:
        popen = subprocess.Popen(
            [*command, *text],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno(), *listen],
            start_new_session=True,
        )
    channel = Channel(ours, peer=f"worker {rank}", send_timeout_s=SEND_TIMEOUT_S)
    return WorkerProcess(rank=rank, popen=popen, channel=channel)


@contextlib.contextmanager
def ctrl_c_held_back() -> Iterator[None]:
    """Let Ctrl-C wait while a process starts: one that had started and was not yet noted would be left behind."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if held:
            signal.raise_signal(signal.SIGINT)


def default_command() -> tuple[str, ...]:
    """Return the command that runs a worker; `-P` keeps the user's working folder out of its imports."""
    return (sys.executable, "-P", "-m", "mcf.dist.worker")
