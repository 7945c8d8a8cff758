"""Streams of hardware as tests drive them in Amaranth's simulator: values in, values out, with random stalls.

`put` and `take` are process bodies for `Simulator.add_testbench`; a rate is the share of cycles in which a side is
willing. Both wait tick by tick: a bench in the background can be abandoned at any tick.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from amaranth.hdl import Elaboratable
from amaranth.sim import Simulator, SimulatorContext

PERIOD_S = 1e-6  # any: simulated time has no meaning here
Bench = Callable[[SimulatorContext], Any]


async def put(
    ctx: SimulatorContext, port: Any, values: Iterable[Any], *, rng: random.Random, rate: float = 1.0
) -> None:
    """Offer values to an input stream, one by one."""
    for value in values:
        while rng.random() >= rate:
            await ctx.tick()
        ctx.set(port.payload, value)
        ctx.set(port.valid, 1)
        while not (await ctx.tick().sample(port.ready))[-1]:
            pass
        ctx.set(port.valid, 0)


async def take(ctx: SimulatorContext, port: Any, count: int, *, rng: random.Random, rate: float = 1.0) -> list[Any]:
    """Take `count` values from an output stream; structures come as they are in the simulator."""
    taken = []
    for _ in range(count):
        while rng.random() >= rate:
            await ctx.tick()
        ctx.set(port.ready, 1)
        is_there, value = False, None
        while not is_there:
            *_, is_there, value = await ctx.tick().sample(port.valid, port.payload)
        ctx.set(port.ready, 0)
        taken.append(value)
    return taken


def simulate(design: Elaboratable, benches: Sequence[Bench], *, background: Sequence[Bench] = ()) -> None:
    """Run until every bench has ended; background ones may still be at work."""
    simulator = Simulator(design)
    simulator.add_clock(PERIOD_S)
    for bench in benches:
        simulator.add_testbench(bench)
    for bench in background:
        simulator.add_testbench(bench, background=True)
    simulator.run()
