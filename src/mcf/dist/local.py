"""A transport without processes: threads of one process, for tests. A body of `Transport`, not a mock.

Like Gloo, a send ends only when its receive has been posted and the bytes have been copied. Unlike Gloo, a receive of
another size or dtype than its send is an error. With a seed, transfers with different (src, dst, tag) arrive in an
order drawn from the seed, as late as a waiter allows, and a posted receive is filled with 0xFF bytes (NaN in floats)
until it arrives: a program that reads early or trusts an order that nobody promised fails. With `hold_s` a transfer
is held back, though somebody waits for it, until nothing has been posted for so long. Memory that is under way must be
left alone: posting it again is an error.
"""

import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

import torch

from mcf.dist.transport import Handle, LinkError, Meter
from mcf.errors import TransportError

Key = tuple[int, int, int]
T = TypeVar("T")


class _Post:
    """One posted send or receive; its own handle."""

    def __init__(self, switch: "_Switch", tensor: torch.Tensor, *, rank: int, peer: int, what: str) -> None:
        self.switch = switch
        self.tensor = tensor
        self.rank = rank
        self.peer = peer
        self.what = what
        self.is_recv = False
        self.is_done = False
        self.error = ""
        self.start = tensor.data_ptr()
        self.end = self.start + tensor.numel() * tensor.element_size()

    def overlaps(self, other: "_Post") -> bool:
        """Say whether two posts of one worker share memory."""
        return self.start < other.end and other.start < self.end

    def wait(self) -> None:
        self.switch.wait(self)
        if self.error:
            raise LinkError(self.peer, self.error)


class _Lane:
    """What is posted and not yet delivered for one (src, dst, tag), in order."""

    def __init__(self) -> None:
        self.sends: deque[_Post] = deque()
        self.recvs: deque[_Post] = deque()
        self.num_delivered = 0

    def is_ready(self) -> bool:
        return bool(self.sends and self.recvs)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().view(-1).view(torch.uint8)


def _deliver(send: _Post, recv: _Post) -> None:
    """Copy the bytes of one transfer, or mark both ends as failed."""
    have, want = send.tensor, recv.tensor
    if have.dtype == want.dtype and have.numel() == want.numel():
        _bytes_of(want).copy_(_bytes_of(have))
    else:
        sent, expected = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (have, want))
        send.error = recv.error = f"{send.what} is {sent}; the receive expects {expected}"
    send.is_done = recv.is_done = True


class _Switch:
    """Where sends meet receives. One lock for all of it."""

    def __init__(self, *, seed: int | None, timeout_s: float, hold_s: float) -> None:
        self._seed = seed
        self._timeout_s = timeout_s
        self._hold_s = hold_s
        self._num_events = 0
        self._under_way: dict[int, list[_Post]] = defaultdict(list)
        self._changed = threading.Condition()
        self._lanes: dict[Key, _Lane] = defaultdict(_Lane)
        self._aborted = ""
        self._left: set[int] = set()

    def post_send(self, key: Key, tensor: torch.Tensor) -> _Post:
        src, dst, tag = key
        post = _Post(self, tensor, rank=src, peer=dst, what=f"the send {src} -> {dst} tag {tag}")
        with self._changed:
            self._check_open(post)
            self._check_memory(post, [p for p in self._under_way[src] if p.is_recv])
            self._lanes[key].sends.append(post)
            self._on_post(key)
        return post

    def post_recv(self, key: Key, tensor: torch.Tensor) -> _Post:
        src, dst, tag = key
        post = _Post(self, tensor, rank=dst, peer=src, what=f"the receive {src} -> {dst} tag {tag}")
        post.is_recv = True
        with self._changed:
            self._check_open(post)
            self._check_memory(post, self._under_way[dst])
            if self._seed is not None:
                _bytes_of(tensor).fill_(0xFF)
            self._lanes[key].recvs.append(post)
            self._on_post(key)
        return post

    def wait(self, post: _Post) -> None:
        deadline_s = time.monotonic() + self._timeout_s
        with self._changed:
            while not post.is_done:
                if self._deliver_next():
                    continue
                self._check_open(post)
                if not self._changed.wait(deadline_s - time.monotonic()):
                    raise LinkError(post.peer, f"{post.what} did not end within {self._timeout_s:.1f} s")

    def abort(self, why: str) -> None:
        with self._changed:
            self._aborted = self._aborted or why
            self._changed.notify_all()

    def leave(self, rank: int) -> None:
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _check_memory(self, post: _Post, others: list[_Post]) -> None:
        found = [other for other in others if not other.is_done and post.overlaps(other)]
        if found:
            raise TransportError(f"{post.what} takes the memory of {found[0].what}, which has not ended")
        mine = self._under_way[post.rank]
        mine[:] = [other for other in mine if not other.is_done]
        mine.append(post)

    def _on_post(self, key: Key) -> None:
        self._num_events += 1
        if self._seed is None and self._lanes[key].is_ready():
            self._deliver_on(key)
        self._changed.notify_all()

    def _check_open(self, post: _Post) -> None:
        if self._aborted:
            raise TransportError(f"the local world was aborted: {self._aborted}")
        if post.rank in self._left:
            raise TransportError(f"the transport of worker {post.rank} is closed")
        if post.peer in self._left:
            raise LinkError(post.peer, "it has left")

    def _deliver_next(self) -> bool:
        """Deliver one transfer, or see that others are still at work; False when there is none to deliver."""
        if self._aborted or not self._ready():
            return False
        before = self._num_events
        if self._hold_s:
            self._changed.wait(self._hold_s)
        if before == self._num_events and not self._aborted:
            self._deliver_on(min(self._ready(), key=self._drawn_order))
        return True

    def _ready(self) -> list[Key]:
        return [key for key, lane in self._lanes.items() if lane.is_ready()]

    def _drawn_order(self, key: Key) -> float:
        return random.Random(f"{self._seed} {key} {self._lanes[key].num_delivered}").random()

    def _deliver_on(self, key: Key) -> None:
        lane = self._lanes[key]
        lane.num_delivered += 1
        self._num_events += 1
        _deliver(lane.sends.popleft(), lane.recvs.popleft())
        self._changed.notify_all()


class LocalTransport(Meter):
    """One thread's end of a `LocalWorld`."""

    def __init__(self, switch: _Switch, *, rank: int, world_size: int) -> None:
        super().__init__(rank=rank, world_size=world_size)
        self._switch = switch

    def isend(self, tensor: torch.Tensor, dst: int, tag: int, purpose: int) -> Handle:
        """Post a send; see `Transport`."""
        self._count_send(tensor, dst, tag, purpose)
        return self._switch.post_send((self.rank, dst, tag), tensor)

    def irecv(self, tensor: torch.Tensor, src: int, tag: int, purpose: int) -> Handle:
        """Post a receive; see `Transport`."""
        self._count_recv(tensor, src, tag, purpose)
        return self._switch.post_recv((src, self.rank, tag), tensor)

    def close(self) -> None:
        """Leave: what is still posted with this worker fails at both ends."""
        self._switch.leave(self.rank)


class LocalWorld:
    """`num_ranks` connected transports. `seed` None delivers at once; a number delays and reorders (see above).

    `hold_s` needs a seed.
    """

    def __init__(
        self, num_ranks: int, *, seed: int | None = None, timeout_s: float = 60.0, hold_s: float = 0.0
    ) -> None:
        self._switch = _Switch(seed=seed, timeout_s=timeout_s, hold_s=hold_s)
        self.transports = tuple(
            LocalTransport(self._switch, rank=rank, world_size=num_ranks) for rank in range(num_ranks)
        )

    def abort(self, why: str) -> None:
        """Make every waiting thread and every later call raise TransportError."""
        self._switch.abort(why)

    def run(self, body: Callable[[LocalTransport], T]) -> list[T]:
        """Run `body` once for each rank, each in a thread; return the results in rank order.

        If one raises, the world is aborted, and the first error is raised here when all threads have ended.
        """
        results: dict[int, T] = {}
        errors: list[BaseException] = []

        def run_one(transport: LocalTransport) -> None:
            try:
                results[transport.rank] = body(transport)
            except BaseException as exc:
                errors.append(exc)
                self.abort(f"worker {transport.rank} raised {type(exc).__name__}: {exc}")

        threads = [threading.Thread(target=run_one, args=(transport,)) for transport in self.transports]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return [results[rank] for rank in range(len(threads))]
