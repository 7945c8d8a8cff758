"""Tensors between the workers. The only file that names torch.distributed.

`GlooTransport` joins processes over TCP on the loopback interface; `mcf.dist.local` joins threads of one process for
tests. What the bodies share:

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

import os
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, cast

import torch
from torch._C._distributed_c10d import TCPStore  # torch.distributed has it, but its types do not say so
from torch.distributed.distributed_c10d import ProcessGroupGloo, Work

from mcf.errors import TransportError
from mcf.schedule.steps import PURPOSE_NAMES

LOOPBACK = "127.0.0.1"
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


def _join_store(rank: int, world_size: int, port: int, listen_fd: int, timeout_s: float) -> TCPStore:
    timeout = timedelta(seconds=timeout_s)
    if rank:
        return TCPStore(LOOPBACK, port, world_size, is_master=False, timeout=timeout)
    return TCPStore(
        LOOPBACK, port, world_size, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listen_fd
    )


class _Group(Protocol):
    """What is used of a process group; its published types leave these out."""

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[torch.Tensor], src: int, tag: int, /) -> Work: ...


class _GlooHandle:
    def __init__(self, work: Work, tensor: torch.Tensor, peer: int) -> None:
        self._work: Work | None = work
        self._tensor = tensor
        self._peer = peer

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        try:
            work.wait()
        except RuntimeError as exc:
            raise LinkError(self._peer, _reason(exc)) from exc


class GlooTransport(Meter):
    """Processes on one machine, joined by Gloo over the loopback interface.

    Rank 0 serves the meeting point on `listen_fd`, a listening socket bound to 127.0.0.1:`port`; the others connect to
    it. Blocks until all have come; raises TransportError after `timeout_s`, which is also the time-out of each wait.
    """

    def __init__(self, *, rank: int, world_size: int, port: int, listen_fd: int = -1, timeout_s: float) -> None:
        super().__init__(rank=rank, world_size=world_size)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
        try:
            with _born_polite():
                store = _join_store(rank, world_size, port, listen_fd, timeout_s)
                group = ProcessGroupGloo(store, rank, world_size, timedelta(seconds=timeout_s))
            self._group: _Group | None = cast(_Group, group)  # keeps its store alive
        except RuntimeError as exc:
            raise TransportError(f"worker {rank} could not join the {world_size} workers: {_reason(exc)}") from exc

    def isend(self, tensor: torch.Tensor, dst: int, tag: int, purpose: int) -> Handle:
        """Post a send; see `Transport`."""
        self._count_send(tensor, dst, tag, purpose)
        try:
            return _GlooHandle(self._open_group().send([tensor], dst, tag), tensor, dst)
        except RuntimeError as exc:
            raise LinkError(dst, _reason(exc)) from exc

    def irecv(self, tensor: torch.Tensor, src: int, tag: int, purpose: int) -> Handle:
        """Post a receive; see `Transport`."""
        self._count_recv(tensor, src, tag, purpose)
        try:
            return _GlooHandle(self._open_group().recv([tensor], src, tag), tensor, src)
        except RuntimeError as exc:
            raise LinkError(src, _reason(exc)) from exc

    def close(self) -> None:
        """Drop the group and its store; peers that wait for this worker get a LinkError."""
        self._group = None

    def _open_group(self) -> _Group:
        if self._group is None:
            raise TransportError(f"the transport of worker {self.rank} is closed")
        return self._group
