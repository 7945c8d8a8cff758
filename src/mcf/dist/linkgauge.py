"""How fast the links are: each pair and direction alone, then all ports at once, through the run's own transport.

All ranks walk the same list of ordered pairs. In a pair the sender leads: it tells the size and number of messages to
come, and the receiver answers each with one byte's worth of message. So the two ends need no common clock.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import permutations
from statistics import median

import torch
from torch import Tensor

from mcf.dist.transport import Transport
from mcf.schedule.steps import STATE_BYTES

_TAG = 1
_NUM_PINGS, _WARM_PINGS, _NUM_SENDS = 40, 5, 5
_WORD = torch.int64
Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class LinkRates:
    """What one worker measured: by peer, bytes per second and seconds of latency to it; its port with all at once."""

    bytes_s: dict[int, float]
    latency_s: dict[int, float]
    port_bytes_s: float


def measure_links(
    transport: Transport, *, probe_bytes: int, most_bytes: int, seconds: float, clock: Clock = time.perf_counter
) -> LinkRates:
    """Measure from every worker at the same time; `seconds` is about what each pair takes.

    `probe_bytes` go first to choose the size of the others, at most `most_bytes`. One worker alone has no links: a rate
    of 0. Raises LinkError.
    """
    gauge = _Gauge(transport, probe_bytes=probe_bytes, most_bytes=most_bytes, seconds=seconds, clock=clock)
    bytes_s: dict[int, float] = {}
    latency_s: dict[int, float] = {}
    for src, dst in permutations(range(transport.world_size), 2):
        meet(transport)
        if transport.rank == src:
            latency_s[dst], bytes_s[dst] = gauge.lead(dst)
        elif transport.rank == dst:
            gauge.follow(src)
    return LinkRates(bytes_s=bytes_s, latency_s=latency_s, port_bytes_s=gauge.all_at_once())


def meet(transport: Transport) -> None:
    """Return when all workers have come here."""
    share(transport, 0)


def share(transport: Transport, value: int) -> list[int]:
    """Give a number to every worker; return all of them in rank order."""
    mine = torch.tensor([value], dtype=_WORD)
    found = [torch.empty_like(mine) for _ in range(transport.world_size)]
    exchange(transport, mine, {peer: found[peer] for peer in peers_of(transport)})
    found[transport.rank] = mine
    return [int(each) for each in found]


def exchange(transport: Transport, mine: Tensor, theirs: Mapping[int, Tensor]) -> None:
    """Send `mine` to each peer of `theirs` and fill its tensor with what it sends; returns when all has ended."""
    handles = [transport.irecv(inbox, peer, _TAG, STATE_BYTES) for peer, inbox in theirs.items()]
    handles += [transport.isend(mine, peer, _TAG, STATE_BYTES) for peer in theirs]
    for handle in handles:
        handle.wait()


def peers_of(transport: Transport) -> list[int]:
    """All other workers."""
    return [peer for peer in range(transport.world_size) if peer != transport.rank]


class _Gauge:
    def __init__(
        self, transport: Transport, *, probe_bytes: int, most_bytes: int, seconds: float, clock: Clock
    ) -> None:
        self.transport, self.clock, self.seconds = transport, clock, seconds
        self.probe_bytes, self.most_bytes = probe_bytes, most_bytes
        self.buffer = torch.zeros(max(probe_bytes, most_bytes), dtype=torch.uint8)
        self.word = torch.zeros(2, dtype=_WORD)
        self.size = most_bytes

    def lead(self, peer: int) -> tuple[float, float]:
        """Measure the way to a peer: seconds of latency, bytes per second."""
        for _ in range(_WARM_PINGS):
            self._trip(self.word, peer)
        latency = median(self._trip(self.word, peer) for _ in range(_NUM_PINGS)) / 2
        probe_s = self._trip(self.buffer[: self.probe_bytes], peer)
        self.size = self._size(probe_s)
        self.word[0] = self.size
        self._trip(self.word, peer)
        took = median(self._trip(self.buffer[: self.size], peer) for _ in range(_NUM_SENDS))
        return latency, self.size / max(took - 2 * latency, took / 2)

    def follow(self, peer: int) -> None:
        """Answer what `lead` sends."""
        for _ in range(_WARM_PINGS + _NUM_PINGS):
            self._answer(self.word, peer)
        self._answer(self.buffer[: self.probe_bytes], peer)
        self._answer(self.word, peer)
        size = int(self.word[0])
        for _ in range(_NUM_SENDS):
            self._answer(self.buffer[:size], peer)

    def all_at_once(self) -> float:
        """Bytes per second that leave this worker while every worker sends to every other."""
        peers = peers_of(self.transport)
        size = max(1, min(share(self.transport, self.size)) // max(1, len(peers)))
        inboxes = {peer: torch.empty(size, dtype=torch.uint8) for peer in peers}
        times = [self._exchange(inboxes, size) for _ in range(_NUM_SENDS)]
        return len(peers) * size / median(times[1:]) if peers else 0.0

    def _exchange(self, inboxes: dict[int, Tensor], size: int) -> float:
        meet(self.transport)
        start = self.clock()
        exchange(self.transport, self.buffer[:size], inboxes)
        return self.clock() - start

    def _size(self, probe_s: float) -> int:
        """The probe's size, doubled while all sends would still end within the pair's seconds."""
        size = self.probe_bytes
        while size * 2 <= self.most_bytes and probe_s * (size * 2 / self.probe_bytes) * _NUM_SENDS < self.seconds:
            size *= 2
        return size

    def _trip(self, tensor: Tensor, peer: int) -> float:
        start, answer = self.clock(), torch.empty(1, dtype=torch.uint8)
        back = self.transport.irecv(answer, peer, _TAG, STATE_BYTES)
        self.transport.isend(tensor, peer, _TAG, STATE_BYTES).wait()
        back.wait()
        return self.clock() - start

    def _answer(self, tensor: Tensor, peer: int) -> None:
        self.transport.irecv(tensor, peer, _TAG, STATE_BYTES).wait()
        self.transport.isend(torch.zeros(1, dtype=torch.uint8), peer, _TAG, STATE_BYTES).wait()
