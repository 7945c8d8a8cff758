"""Tensors between the workers. The only file that names torch.distributed.

`GlooTransport` joins processes over TCP, on the loopback interface unless another address is asked for;
`mcf.dist.local` joins threads of one process for tests. What the bodies share:

1. A transfer is one contiguous CPU tensor; sender and receiver name the same tag. Transfers with the same sender,
   receiver and tag arrive in the order they were sent.
2. A send ends only after the receive has been posted: `isend(...).wait()` before the matching `irecv` of a peer that
   does the same is a dead-lock. Post receives first.
3. A tensor must not be touched between posting and the end of `wait`. The handle keeps it alive.
4. Bytes are counted when they are posted, from the tensors themselves: sends at the sender, receives at the receiver.
5. Any failure is a `LinkError` that names the peer; the transport is unusable after it.

What Gloo does (pinned by tests/workers/test_gloo.py):

- `wait()` does not see SIGINT. Workers are in sessions of their own and have a thread that ends the process.
- A wait that times out closes the pair for good. So the time-out is long: heartbeats notice dead peers, not Gloo.
- A message shorter than posted is accepted silently, and a longer one ends the process (C++ terminate): sizes are
  proven by the schedule's hash.
- Gloo's loop thread spins for as long as a sending thread holds a pair's lock. With fewer free cores than threads it
  preempts the very thread it waits for, and burns a scheduler tick (4 ms) for an exchange of 0.1 ms. Born with
  SCHED_BATCH it never preempts: measured 0.05-0.1 ms instead of 0.3-4 ms on 2 cores with 2 workers.
"""

import ipaddress
import os
import re
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but its types do not say so
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Work

from mcf.dist.names import without_names
from mcf.errors import TransportError
from mcf.schedule.steps import PURPOSE_NAMES

LOOPBACK = "127.0.0.1"
OPEN_S = 10.0  # for a store that was there a moment ago: torch takes twice as long to give it up
MEET_S = 120.0  # until all workers have imported torch and their connections stand
BOARD_S = 30.0  # a store that does not answer for so long is taken for gone
MAX_TAG = (1 << 31) - 1
Counters = dict[tuple[int, int, int], int]


class LinkError(TransportError):
    """The link to one peer broke or timed out; carries `peer`."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"link to worker {peer} broke: {why}")
        self.peer = peer


class Handle(Protocol):
    """A posted transfer."""

    def wait(self) -> None:
        """Block until the transfer has ended. Raises LinkError; harmless when called again."""


class Transport(Protocol):
    """The tensors' way between `world_size` workers.

    `counters` maps (src, dst, purpose) to bytes; purposes are those of `mcf.schedule.steps`.
    """

    rank: int
    world_size: int
    counters: Counters

    def isend(self, tensor: torch.Tensor, dst: int, tag: int, purpose: int) -> Handle:
        """Post a send of all bytes of `tensor` to `dst`."""

    def irecv(self, tensor: torch.Tensor, src: int, tag: int, purpose: int) -> Handle:
        """Post a receive from `src` into `tensor`."""

    def close(self) -> None:
        """Give back links and threads; later calls raise TransportError."""


class Meter:
    """Checks what is posted and counts its bytes; the base of the transports' bodies."""

    def __init__(self, *, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size
        self.counters: Counters = defaultdict(int)
        self._counter_lock = threading.Lock()

    def _count_send(self, tensor: torch.Tensor, dst: int, tag: int, purpose: int) -> None:
        self._check(tensor, dst, tag, purpose)
        self._count((self.rank, dst, purpose), tensor)

    def _count_recv(self, tensor: torch.Tensor, src: int, tag: int, purpose: int) -> None:
        self._check(tensor, src, tag, purpose)
        self._count((src, self.rank, purpose), tensor)

    def _count(self, key: tuple[int, int, int], tensor: torch.Tensor) -> None:
        with self._counter_lock:
            self.counters[key] += tensor.numel() * tensor.element_size()

    def _check(self, tensor: torch.Tensor, peer: int, tag: int, purpose: int) -> None:
        if peer == self.rank or not 0 <= peer < self.world_size:
            raise ValueError(f"peer {peer} of worker {self.rank}: expected another worker below {self.world_size}")
        if not 0 <= tag <= MAX_TAG or purpose not in PURPOSE_NAMES:
            raise ValueError(f"tag {tag}, purpose {purpose}: expected a tag up to {MAX_TAG} and a known purpose")
        if not tensor.is_contiguous() or tensor.device.type != "cpu" or not tensor.numel():
            what = f"a {tensor.device.type} tensor of shape {tuple(tensor.shape)} and stride {tensor.stride()}"
            raise ValueError(f"{what}: expected a contiguous, non-empty CPU tensor")


@contextmanager
def _born_polite() -> Iterator[None]:
    """Let threads that are started inside inherit SCHED_BATCH (Linux): they never preempt a thread that runs."""
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def _reason(exc: BaseException) -> str:
    """Return torch's message as one line, without its place in the C++ source and its advice."""
    line = (str(exc).strip().splitlines() or [type(exc).__name__])[0]
    return re.sub(r"^\[\S+:\d+\] ", "", line).partition(". This is typically")[0]


def _open_store(host: str, port: int, listen_fd: int, timeout_s: float) -> TCPStore:
    """Return a client of the store at host:port; serves it on `listen_fd`, a listening socket, unless that is -1."""
    timeout, address = timedelta(seconds=timeout_s), _address_of(host, port)
    serves, fd = (True, listen_fd) if listen_fd >= 0 else (False, None)
    store = partial(TCPStore, is_master=serves, timeout=timeout, wait_for_workers=False, master_listen_fd=fd)
    return without_names(partial(store, address, port))


def _address_of(host: str, port: int) -> str:
    """Return the address at which a host answers; the host itself where it is an address, or does not answer."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        with socket.create_connection((host, port), timeout=OPEN_S) as found:
            return str(found.getpeername()[0])
    except OSError:
        return host


class Board:
    """The launcher's key-value store, a corner of it under `prefix`: where head and workers of several hosts meet.

    With `listen_fd`, a listening socket, this process serves the store; else it is a client. Values are short texts.
    Raises TransportError when the store cannot be reached or has gone.
    """

    def __init__(self, host: str, port: int, *, prefix: str, listen_fd: int = -1) -> None:
        self._where = f"the store at {host}:{port} (MASTER_ADDR, MASTER_PORT)"
        with self._in_our_words("cannot be reached"):
            self._store = _open_store(host, port, listen_fd, OPEN_S)
            self._store.set_timeout(timedelta(seconds=BOARD_S))
            self._corner = PrefixStore(prefix, self._store)

    def post(self, key: str, text: str) -> None:
        """Write one text for all to read."""
        with self._in_our_words("has gone"):
            self._corner.set(key, text)

    def read(self, key: str) -> str | None:
        """Return what was posted under the key; None if nothing is there yet."""
        with self._in_our_words("has gone"):
            return self._corner.get(key).decode() if self._corner.check([key]) else None

    @contextmanager
    def _in_our_words(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as exc:
            raise TransportError(f"{self._where} {what}: {_reason(exc)}") from exc


def _gloo_options(address: str, timeout_s: float) -> Any:
    """Return Gloo's options with one device, whose socket is bound to `address` and to no other."""
    gloo: Any = ProcessGroupGloo  # its published types leave these out
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout_s)
    return options


class _Group(Protocol):
    """What is used of a process group; its published types leave these out."""

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int, /) -> Work: ...


class _GlooHandle:
    def __init__(self, work: Work, tensor: torch.Tensor, peer: int, timeout: timedelta) -> None:
        self._work: Work | None = work
        self._tensor = tensor
        self._peer = peer
        self._timeout = timeout

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        try:
            work.wait(self._timeout)
        except RuntimeError as exc:
            raise LinkError(self._peer, _reason(exc)) from exc


class GlooTransport(Meter):
    """Processes joined by Gloo over TCP; each listens on its own `address` alone, by default on loopback.

    They meet in the store at `host`:`port`, under keys that begin with `prefix`; whoever has `listen_fd`, a listening
    socket bound there, serves it. Blocks until all have come; raises TransportError after `MEET_S`, or `timeout_s` if
    that is less, which is the time-out of each wait.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        port: int,
        timeout_s: float,
        listen_fd: int = -1,
        host: str = LOOPBACK,
        address: str = LOOPBACK,
        prefix: str = "",
    ) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._timeout, meet_s = timedelta(seconds=timeout_s), min(timeout_s, MEET_S)
        try:
            with _born_polite():
                store = _open_store(host, port, listen_fd, meet_s)
                corner = PrefixStore(prefix, store)
                group = ProcessGroupGloo(corner, rank, world_size, _gloo_options(address, meet_s))
            self._group: _Group | None = cast(_Group, group)  # keeps its store alive
        except RuntimeError as exc:
            raise TransportError(f"worker {rank} could not join the {world_size} workers: {_reason(exc)}") from exc

    def isend(self, tensor: torch.Tensor, dst: int, tag: int, purpose: int) -> Handle:
        """Post a send; see `Transport`."""
        self._count_send(tensor, dst, tag, purpose)
        try:
            return _GlooHandle(self._open_group().send([tensor], dst, tag), tensor, dst, self._timeout)
        except RuntimeError as exc:
            raise LinkError(dst, _reason(exc)) from exc

    def irecv(self, tensor: torch.Tensor, src: int, tag: int, purpose: int) -> Handle:
        """Post a receive; see `Transport`."""
        self._count_recv(tensor, src, tag, purpose)
        try:
            return _GlooHandle(self._open_group().recv([tensor], src, tag), tensor, src, self._timeout)
        except RuntimeError as exc:
            raise LinkError(src, _reason(exc)) from exc

    def close(self) -> None:
        """Drop the group and its store; peers that wait for this worker get a LinkError."""
        self._group = None

    def _open_group(self) -> _Group:
        if self._group is None:
            raise TransportError(f"the transport of worker {self.rank} is closed")
        return self._group
