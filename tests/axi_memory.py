"""A memory behind AXI ports in Amaranth's simulator: latency, random pauses, errors where they are asked for.

It also judges the master: bursts of whole beats that do not cross 4 KB, offers that stay until they are taken.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

BEAT_BYTES = 16
PAGE_BYTES = 4096
SLVERR = 2
Process = Callable[[Any], Any]


@dataclass(kw_only=True)
class Memory:
    """Bytes, and the bursts (address, beats) that were asked for. An address that is `broken` answers SLVERR."""

    image: bytearray
    latency: int = 0
    pause: float = 0.0
    seed: int = 0
    broken: Callable[[int], bool] = lambda address: False
    reads: list[tuple[int, int]] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    most_under_way: int = 0

    def read_port(self, axi: Any) -> list[Process]:
        """What serves a read port: processes that never end."""
        queue: deque[tuple[int, int, bool]] = deque()  # due in cycle, address, last of its burst

        def take(cycle: int, beats: list[int]) -> None:
            queue.extend((cycle + self.latency, at, at == beats[-1]) for at in beats)
            self.most_under_way = max(self.most_under_way, sum(last for *_, last in queue))

        async def answer(ctx: Any) -> None:
            rng = random.Random(self.seed + 1)
            cycle = 0
            while True:
                if queue and queue[0][0] <= cycle and rng.random() >= self.pause:
                    _, address, last = queue.popleft()
                    ctx.set(axi.rdata, int.from_bytes(self.image[address : address + BEAT_BYTES], "little"))
                    ctx.set(axi.rlast, last)
                    ctx.set(axi.rresp, SLVERR * self.broken(address))
                    cycle += await _offer(ctx, axi, "r")
                else:
                    await ctx.tick()
                    cycle += 1

        return [self._addresses(axi, "ar", self.reads, take), answer]

    def write_port(self, axi: Any) -> list[Process]:
        """What serves a write port."""
        places: deque[tuple[int, bool]] = deque()  # address, last of its burst
        answers: deque[tuple[int, bool]] = deque()  # due in cycle, good
        good = [True]

        def take(_: int, beats: list[int]) -> None:
            places.extend((at, at == beats[-1]) for at in beats)
            self.most_under_way = max(self.most_under_way, sum(last for *_, last in places) + len(answers))

        async def store(ctx: Any) -> None:
            rng = random.Random(self.seed + 2)
            cycle = 0
            while True:
                ready = bool(places) and rng.random() >= self.pause
                ctx.set(axi.wready, ready)
                names = (axi.wvalid, axi.wdata, axi.wlast, axi.wstrb)
                _, _, valid, word, last, strobes = await ctx.tick().sample(*names)
                cycle += 1
                if not (valid and ready):
                    continue
                address, is_end = places.popleft()
                assert (bool(last), strobes) == (is_end, 0xFFFF)
                good[0] &= not self.broken(address)
                if good[0]:
                    self.image[address : address + BEAT_BYTES] = word.to_bytes(BEAT_BYTES, "little")
                if last:
                    answers.append((cycle + self.latency, good[0]))
                    good[0] = True

        async def answer(ctx: Any) -> None:
            rng = random.Random(self.seed + 3)
            cycle = 0
            while True:
                if answers and answers[0][0] <= cycle and rng.random() >= self.pause:
                    ctx.set(axi.bresp, SLVERR * (not answers.popleft()[1]))
                    cycle += await _offer(ctx, axi, "b")
                else:
                    await ctx.tick()
                    cycle += 1

        return [self._addresses(axi, "aw", self.writes, take), store, answer]

    def _addresses(self, axi: Any, channel: str, into: list[tuple[int, int]], take: Any) -> Process:
        names = ("valid", "addr", "len", "size", "burst")
        signals = [getattr(axi, channel + name) for name in names]

        async def bench(ctx: Any) -> None:
            rng = random.Random(self.seed)
            waits: tuple[int, ...] = ()
            cycle = 0
            while True:
                ready = rng.random() >= self.pause
                ctx.set(getattr(axi, channel + "ready"), ready)
                _, _, *found = await ctx.tick().sample(*signals)
                valid, address, length, size, burst = found
                assert not waits or tuple(found) == waits, "an address that waits has changed"
                waits = tuple(found) if valid and not ready else ()
                cycle += 1
                if valid and ready:
                    assert (size, burst, address % BEAT_BYTES) == (4, 1, 0)
                    end = address + BEAT_BYTES * (length + 1)
                    assert address // PAGE_BYTES == (end - 1) // PAGE_BYTES, f"crosses 4 KB: {address:#x}, {length + 1}"
                    into.append((address, length + 1))
                    take(cycle, list(range(address, end, BEAT_BYTES)))

        return bench


async def _offer(ctx: Any, axi: Any, channel: str) -> int:
    """Hold a channel's valid until it is taken; return the cycles that it took."""
    ctx.set(getattr(axi, channel + "valid"), 1)
    cycles = 1
    while not (await ctx.tick().sample(getattr(axi, channel + "ready")))[-1]:
        cycles += 1
    ctx.set(getattr(axi, channel + "valid"), 0)
    return cycles
