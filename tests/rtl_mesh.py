"""The same mesh twice: instances of a compiled module in the C++ mesh, and one design in Amaranth's simulator."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from amaranth.hdl import Elaboratable, Module
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import Component, In, Out
from amaranth.sim import Simulator

from mcf.rtl.build.cxxrtl import Library
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.mesh.library import Mesh

End = tuple[int, str]
Taken = list[tuple[int, int]]  # cycle, payload
WORDS = 5  # of a beat
LAST = 1 << 128


class Cross(Component):
    """Two queues that cross: what comes in by one goes out by the other, and `moved` counts."""

    def __init__(self) -> None:
        super().__init__({"inputs": In(BeatStream).array(2), "outputs": Out(BeatStream).array(2), "moved": Out(40)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for i in range(2):
            m.submodules[f"queue_{i}"] = queue = SyncFIFOBuffered(width=129, depth=4)
            source, target = self.inputs[i], self.outputs[1 - i]
            m.d.comb += [queue.w_data.eq(source.payload), queue.w_en.eq(source.valid), source.ready.eq(queue.w_rdy)]
            m.d.comb += [target.payload.eq(queue.r_data), target.valid.eq(queue.r_rdy), queue.r_en.eq(target.ready)]
            with m.If(source.valid & source.ready):
                m.d.sync += self.moved.eq(self.moved + (1 << 4 * i))
        return m


def beats(num_beats: int, seed: int, packet: int = 5) -> list[int]:
    rng = random.Random(seed)
    return [rng.getrandbits(128) | (LAST if i % packet == packet - 1 else 0) for i in range(num_beats)]


@dataclass(kw_only=True)
class Plan:
    """What is wired to what; sources with what they offer, sinks with how often they stall."""

    num_instances: int
    links: list[tuple[End, End]]
    sources: list[tuple[End, float, list[int]]] = field(default_factory=list)
    sinks: list[tuple[End, float]] = field(default_factory=list)


class Chance:
    """The mesh's random numbers, once more."""

    def __init__(self, seed: int, chance: float) -> None:
        self.state, self.chance = seed, round(chance * 256)

    def hit(self) -> bool:
        if not self.chance:
            return False
        self.state ^= self.state >> 12
        self.state ^= self.state << 25 & 2**64 - 1
        self.state ^= self.state >> 27
        return (self.state * 2685821657736338717 & 2**64 - 1) >> 56 < self.chance


class Seeds:
    """The seeds that a mesh gives its sources and sinks, in the order of the calls."""

    def __init__(self) -> None:
        self.seed = 0x9E3779B97F4A7C15

    def next(self) -> int:
        self.seed = (self.seed * 6364136223846793005 + 1442695040888963407) % 2**64 | 1
        return self.seed


def words_of(payloads: Sequence[int]) -> Any:
    joined = b"".join(value.to_bytes(4 * WORDS, "little") for value in payloads)
    return np.frombuffer(joined, "<u4").reshape(-1, WORDS)


def values_of(words: Any) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in np.ascontiguousarray(words)]


def in_cxxrtl(library: Library, plan: Plan, num_cycles: int) -> list[Taken]:
    with Mesh() as mesh:
        for _ in range(plan.num_instances):
            mesh.instance(library)
        for a, b in plan.links:
            mesh.link(a, b)
        for end, gap, payloads in plan.sources:
            mesh.push(mesh.source(end, gap=gap), words_of(payloads))
        sinks = [mesh.sink(end, stall=stall) for end, stall in plan.sinks]
        mesh.run(num_cycles)
        out = []
        for sink in sinks:
            cycles, words = mesh.take(sink, WORDS)
            out.append(list(zip(cycles.tolist(), values_of(words), strict=True)))
        return out


class Joined(Elaboratable):
    """All instances in one design; what is not wired takes and offers nothing."""

    def __init__(self, make: Callable[[], wiring.Component], plan: Plan) -> None:
        self.instances = [make() for _ in range(plan.num_instances)]
        self.plan = plan

    def end(self, end: End) -> Any:
        value: Any = self.instances[end[0]]
        for part in end[1].split("__"):
            value = value[int(part)] if part.isdigit() else getattr(value, part)
        return value

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules += self.instances
        for a, b in self.plan.links:
            wiring.connect(m, self.end(a), self.end(b))
        return m


def in_amaranth(make: Callable[[], wiring.Component], plan: Plan, num_cycles: int) -> list[Taken]:
    design, seeds = Joined(make, plan), Seeds()
    taken: list[Taken] = [[] for _ in plan.sinks]
    simulator = Simulator(design)
    simulator.add_clock(1e-9)
    for end, gap, payloads in plan.sources:
        simulator.add_testbench(_source(design.end(end), Chance(seeds.next(), gap), payloads), background=True)
    for (end, stall), into in zip(plan.sinks, taken, strict=True):
        simulator.add_testbench(_sink(design.end(end), Chance(seeds.next(), stall), into), background=True)

    async def clock(ctx: Any) -> None:
        await ctx.tick().repeat(num_cycles)

    simulator.add_testbench(clock)
    simulator.run()
    return taken


def _source(port: Any, gap: Chance, payloads: list[int]) -> Callable[[Any], Any]:
    async def bench(ctx: Any) -> None:
        for payload in payloads:
            while gap.hit():
                await ctx.tick()
            ctx.set(port.payload.as_value() if hasattr(port.payload, "as_value") else port.payload, payload)
            ctx.set(port.valid, 1)
            await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)

    return bench


def _sink(port: Any, stall: Chance, into: Taken) -> Callable[[Any], Any]:
    async def bench(ctx: Any) -> None:
        cycle = 0
        payload = port.payload.as_value() if hasattr(port.payload, "as_value") else port.payload
        while True:
            ctx.set(port.ready, not stall.hit())
            _, _, valid, ready, value = await ctx.tick().sample(port.valid, port.ready, payload)
            if valid and ready:
                into.append((cycle, value))
            cycle += 1

    return bench
