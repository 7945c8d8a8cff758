"""Driving streams in Amaranth's simulator, with random stalls from a seed."""

import random
from collections.abc import Callable, Iterable
from typing import Any

from amaranth.sim import Simulator

CLOCK_S = 5e-9  # 200 MHz; nothing depends on it


def beats_of(packets: Iterable[list[int]]) -> list[dict[str, int]]:
    return [{"data": word, "last": int(i == len(packet) - 1)} for packet in packets for i, word in enumerate(packet)]


def packets_of(beats: Iterable[Any]) -> list[list[int]]:
    packets: list[list[int]] = [[]]
    for beat in beats:
        packets[-1].append(beat.data)
        if beat.last:
            packets.append([])
    assert not packets.pop(), "the last packet has no end"
    return packets


def source(stream: Any, items: Iterable[Any], *, stalls: float = 0.0, seed: int = 0) -> Callable[[Any], Any]:
    """Offer items in order; between two of them wait a cycle with probability `stalls`, again and again."""

    async def bench(ctx: Any) -> None:
        rng = random.Random(seed)
        for item in items:
            while rng.random() < stalls:
                await ctx.tick()
            await put(ctx, stream, item)

    return bench


async def put(ctx: Any, stream: Any, item: Any) -> None:
    ctx.set(stream.payload, item)
    ctx.set(stream.valid, 1)
    while not (await ctx.tick().sample(stream.ready))[-1]:  # tick by tick: `until` cannot be abandoned
        pass
    ctx.set(stream.valid, 0)


def sink(stream: Any, into: list[Any], *, stalls: float = 0.0, seed: int = 1) -> Callable[[Any], Any]:
    """Take whatever comes, for ever; not ready with probability `stalls` in each cycle."""

    async def bench(ctx: Any) -> None:
        rng = random.Random(seed)
        while True:
            ctx.set(stream.ready, rng.random() >= stalls)
            _, _, valid, ready, payload = await ctx.tick().sample(stream.valid, stream.ready, stream.payload)
            if valid and ready:
                into.append(payload)

    return bench


def tally(pulses: dict[str, Any], into: dict[str, int]) -> Callable[[Any], Any]:
    """Count the cycles in which each signal is high."""

    async def bench(ctx: Any) -> None:
        into.update(dict.fromkeys(pulses, 0))
        while True:
            _, _, *values = await ctx.tick().sample(*pulses.values())
            for name, value in zip(pulses, values, strict=True):
                into[name] += value

    return bench


def simulate(design: Any, *benches: Callable[[Any], Any], background: Iterable[Callable[[Any], Any]] = ()) -> None:
    """Run until every bench has ended; those of `background` never do."""
    simulator = Simulator(design)
    simulator.add_clock(CLOCK_S)
    for bench in benches:
        simulator.add_testbench(bench)
    for bench in background:
        simulator.add_testbench(bench, background=True)
    simulator.run()
