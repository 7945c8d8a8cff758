"""Runs over hosts as tests start them: torchrun on each of some network namespaces, or on loopback."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import psutil

from netns import Host

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
PORT = 29500
TIMEOUT_S = 150.0  # longer than a head waits for workers to join: its own words come first
_ABORT_S = 5.0  # within which a process has printed where it stands
_ALL: "weakref.WeakSet[Running]" = weakref.WeakSet()


class Running:
    """A started process whose stderr is collected, and whose stdin and stdout are lines; killed when left."""

    def __init__(self, command: Sequence[str], **env: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        full_env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", **env}
        self.popen = subprocess.Popen(list(command), env=full_env, text=True, encoding="utf-8", **pipes)
        self.err = ""
        self._is_over = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        _ALL.add(self)

    def line(self) -> str:
        """Wait for the next line of stdout."""
        line = self.popen.stdout.readline()
        assert line, f"it ended: {self.end()}"
        return line.rstrip("\n")

    def wait_for(self, text: str) -> None:
        """Wait until stderr has this text."""
        with self._news:
            assert self._news.wait_for(lambda: text in self.err or self._is_over, TIMEOUT_S), self.err
        assert text in self.err, self.err

    def tell(self, text: str) -> None:
        """Write one line to stdin."""
        self.popen.stdin.write(f"{text}\n")
        self.popen.stdin.flush()

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit code, the rest of stdout, and stderr. If it hangs, tell of all that do."""
        with self.popen:  # closes the pipes
            try:
                self.popen.stdin.close()
                self.popen.wait(TIMEOUT_S)
                out = self.popen.stdout.read()
                self._reader.join(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                told = [running.autopsy() for running in list(_ALL) if running.popen.returncode is None]
                raise AssertionError("\n".join(["did not end", *told])) from None
            finally:
                self.popen.kill()
        return self.popen.returncode, out, self.err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.popen.kill()
        with self.popen:
            self._reader.join(TIMEOUT_S)

    def autopsy(self) -> str:
        """End this process and all that it has started; return where each stood, and what they have printed."""
        processes = [*_family(self.popen.pid)]
        found = [f"-- {' '.join(self.popen.args)}", *map(_stand, processes), _connections(self.popen.pid)]
        for process in reversed(processes):  # what a process started first: its parent tells its end
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGABRT)  # faulthandler prints the frames of all threads
                psutil.wait_procs([process], _ABORT_S)
                process.kill()
        self._reader.join(_ABORT_S)
        return "\n".join([*found, "stdout:", self.popen.stdout.read(), "stderr:", self.err])

    def _read(self) -> None:
        for line in self.popen.stderr:
            with self._news:
                self.err += line
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _stand(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error, OSError):
        waits = Path(f"/proc/{process.pid}/wchan").read_text()
        return f"{process.pid} {process.status()} in {waits}: {' '.join(process.cmdline())[:200]}"
    return f"{process.pid}: gone"


def _connections(pid: int) -> str:
    """Return the TCP connections of the host on which a process runs."""
    command = ["nsenter", f"--net=/proc/{pid}/ns/net", "ss", "-tanp"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return ""


@contextlib.contextmanager
def torchrun(hosts: Sequence[Host], *command: str, **env: str) -> Iterator[list[Running]]:
    """Start the documented command on each host, rank 0 on the first."""
    world = ("--nnodes", str(len(hosts)), "--nproc-per-node", "1")
    place = ("--master-addr", hosts[0].address, "--master-port", str(PORT))
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Running(host.inside(TORCHRUN, *world, "--node-rank", str(rank), *place, *command), **env)
            )
            for rank, host in enumerate(hosts)
        ]


def rank_of(rank: int, world_size: int, port: int, *command: str, **env: str) -> Running:
    """Start one process of a world as any launcher would, without an agent: rank 0 serves the store."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    place |= {"LOCAL_WORLD_SIZE": str(world_size)}
    return Running([sys.executable, *command], **place, **env)
