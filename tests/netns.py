"""Hosts for tests: network namespaces of this machine, joined by a bridge. Needs root and iproute2.

    with hosts(2, rate="100mbit") as (a, b):
        a.popen("torchrun", ...)
        b.cut()

A host has one interface, eth0, with the address 10.0.0.(n + 1). Everything is torn down at the end, with whatever
still runs inside; what an earlier test process left behind (it was killed) is cleared away by the next one.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from processes import PATIENCE_S, still_alive

PREFIX = "mcft"  # of the names of namespaces and links; at most 15 characters in all
NETWORK = "10.0.0"  # the documents'; nothing outside the namespaces has these addresses
_LOCK = Path(tempfile.gettempdir()) / "mcf-test-netns.lock"  # one world of hosts at a time on a machine


def why_not() -> str:
    """Return what is missing for namespaces as hosts; empty where nothing is."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "hosts need `ip` and `tc` (Debian: iproute2)"
    probe = f"{PREFIX}probe{os.getpid()}"
    if _ip("netns", "add", probe, check=False).returncode:
        return "hosts need the right to make network namespaces (root)"
    _ip("netns", "del", probe)
    return ""


@dataclass(frozen=True, kw_only=True)
class Host:
    """One namespace. `address` is on its interface eth0; `link` is the other end, on the bridge."""

    name: str
    index: int

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"{NETWORK}.{self.index + 1}"

    @property
    def link(self) -> str:
        """The bridge's end of its cable."""
        return f"{PREFIX}l{self.index}"

    def inside(self, *command: str) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["ip", "netns", "exec", self.name, *command]

    def pids(self) -> list[int]:
        """Return the ids of the processes on this host."""
        return [int(pid) for pid in _ip("netns", "pids", self.name, check=False).stdout.split()]

    def limit(self, rate: str, *, burst_bytes: int = 64 << 10) -> None:
        """Let the cable carry no more than `rate` (for instance 100mbit) in either direction, but for a short burst.

        What the sender hands down at once stays below the burst: `tbf` would cut it into packets of the wire's size by
        software, on the cores that compute here; interface cards do that by themselves.
        """
        _ip("-n", self.name, "link", "set", "eth0", "gso_max_size", str(burst_bytes // 2))
        shape = ("root", "tbf", "rate", rate, "burst", str(burst_bytes), "latency", "100ms")
        subprocess.run(["tc", "qdisc", "replace", "dev", self.link, *shape], check=True)
        subprocess.run(["tc", "-n", self.name, "qdisc", "replace", "dev", "eth0", *shape], check=True)

    def take_down(self) -> None:
        """Take the interface down: the host knows it."""
        _ip("-n", self.name, "link", "set", "eth0", "down")

    def unplug(self) -> None:
        """Drop all packets silently: the cable leaves the bridge, and both ends stay up."""
        _ip("link", "set", self.link, "nomaster")


@contextlib.contextmanager
def hosts(count: int, *, rate: str | None = None) -> Iterator[list[Host]]:
    """Make `count` hosts on one bridge, each cable limited to `rate`; end whatever runs on them when done."""
    made = [Host(name=f"{PREFIX}h{index}", index=index) for index in range(count)]
    with _LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _clear_away()
        try:
            _ip("link", "add", f"{PREFIX}br", "type", "bridge")
            _ip("link", "set", f"{PREFIX}br", "up")
            for host in made:
                _plug_in(host)
                if rate is not None:
                    host.limit(rate)
            yield made
        finally:
            _clear_away()


def all_gone(made: list[Host]) -> bool:
    """Wait patiently until nothing runs on the hosts; return whether that is so."""
    deadline_s = time.monotonic() + PATIENCE_S
    while any(host.pids() for host in made):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True


def _plug_in(host: Host) -> None:
    _ip("netns", "add", host.name)
    _ip("link", "add", host.link, "type", "veth", "peer", "name", "eth0", "netns", host.name)
    _ip("link", "set", host.link, "master", f"{PREFIX}br", "up")
    _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
    for name in ("lo", "eth0"):
        _ip("-n", host.name, "link", "set", name, "up")


def _clear_away() -> None:
    """Remove everything with our prefix."""
    names = [line.split()[0] for line in _ip("netns", "list").stdout.splitlines()]
    for name in [name for name in names if name.startswith(f"{PREFIX}h")]:
        pids = [int(pid) for pid in _ip("netns", "pids", name, check=False).stdout.split()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        still_alive(pids)
        _ip("netns", "del", name)
    for path in Path("/sys/class/net").glob(f"{PREFIX}*"):
        _ip("link", "del", path.name, check=False)  # a cable may have gone with its namespace


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)
