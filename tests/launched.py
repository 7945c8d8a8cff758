"""Runs over hosts as tests start them: torchrun on each of some network namespaces, or on loopback."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from netns import Host

TORCHRUN = str(Path(sys.executable).with_name("torchrun"))
PORT = 29500
TIMEOUT_S = 120.0


class Running:
    """A started process whose stderr is collected, and whose stdin and stdout are lines; killed when left."""

    def __init__(self, command: Sequence[str], **env: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        full_env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self.popen = subprocess.Popen(list(command), env=full_env, text=True, encoding="utf-8", **pipes)
        self.err = ""
        self._is_over = False
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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
        """Wait for the end; return the exit code, the rest of stdout, and stderr."""
        with self.popen:  # closes the pipes
            try:
                self.popen.stdin.close()
                self.popen.wait(TIMEOUT_S)
                out = self.popen.stdout.read()
                self._reader.join(TIMEOUT_S)
            finally:
                self.popen.kill()
        return self.popen.returncode, out, self.err

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.popen.kill()
        with self.popen:
            self._reader.join(TIMEOUT_S)

    def _read(self) -> None:
        for line in self.popen.stderr:
            with self._news:
                self.err += line
                self._news.notify_all()
        with self._news:
            self._is_over = True
            self._news.notify_all()


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
