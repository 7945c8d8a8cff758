"""Drives the compute half in Amaranth's simulator, with the memory of tests/axi_memory.py behind its ports."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from axi_memory import Memory
from mcf.rtl.commands import ComputeOp, pack_command, unpack_command
from mcf.rtl.golden.attention import ROW_SHIFT
from mcf.rtl.golden.tiles import key_tiles, matrix_tiles, port_runs, value_tiles
from mcf.rtl.hdl.compute import Compute
from rtl_streams import packets_of, put, simulate, sink

STRIDE = 0x400  # beats from one port's run to the next
RUN_BYTES = 16 * STRIDE


@dataclass(kw_only=True)
class Ran:
    """What came out: events, records of states, the cycles in which a beat of a tile left the tile buffer, failures."""

    events: list[int] = field(default_factory=list)
    waited: list[int] = field(default_factory=list)
    records: list[list[int]] = field(default_factory=list)
    beats: list[int] = field(default_factory=list)
    failed: int = 0


class Image:
    """The bytes of a memory, and what a test writes there."""

    def __init__(self, seed: int, size: int = 0x80000) -> None:
        self.rng, self.bytes = np.random.default_rng(seed), bytearray(size)

    def put(self, at: int, raw: bytes) -> None:
        self.bytes[at : at + len(raw)] = raw

    def runs(self, at: int, beats: list[int]) -> None:
        for port, run in enumerate(port_runs(beats)):
            assert len(run) <= RUN_BYTES
            self.put(at + RUN_BYTES * port, run)

    def activations(self, at: int, vectors: int, columns: int, padded: int = 0) -> None:
        numbers = self.rng.integers(-2047, 2048, (vectors, columns))
        self.put(at, np.pad(numbers, ((0, 0), (0, max(padded - columns, 0)))).astype("<i2").tobytes())

    def matrix(self, at: int, rows: int, columns: int) -> None:
        scales = self.rng.integers(0, 1 << 16, (rows, columns // 128))
        self.runs(at, matrix_tiles(self.rng.integers(-8, 8, (rows, columns)), scales))

    def shard(self, keys_at: int, values_at: int, tokens: int, head_dim: int) -> None:
        for at, tiles in ((keys_at, key_tiles), (values_at, value_tiles)):
            scales = self.rng.integers(1 << 14, 1 << 16, tokens)
            self.runs(at, tiles(self.rng.integers(-8, 8, (tokens, head_dim)), scales))

    def query_scales(self, at: int) -> None:
        pairs = [(int(self.rng.integers(30000, 60000)), 4) for _ in range(16)]
        self.put(at, np.array(pairs, dtype="<u2").tobytes())


def gemv(**values: int) -> int:
    return pack_command(ComputeOp.GEMV, **{"stride": STRIDE, "columns": 128, "shift": 9, "vectors": 1, **values})


def attend(**values: int) -> int:
    return pack_command(ComputeOp.ATTEND, **{"stride": STRIDE, "columns": 128, "shift": ROW_SHIFT, **values})


def load(**values: int) -> int:
    return pack_command(ComputeOp.LOAD, **values)


def run_compute(image: bytearray, commands: list[int], *, stalls: float = 0.0, **memory: Any) -> Ran:
    """Run packed commands to their end. A wait for an event is granted as soon as it was set."""
    dut, served, ran, states = Compute(), Memory(image=image, **memory), Ran(), []
    num_beats = 17 * sum(c["count"] for c in map(unpack_command, commands) if c["finish"])

    async def bench(ctx: Any) -> None:
        for command in commands:
            await put(ctx, dut.commands, unpack_command(command))
        while ctx.get(dut.busy) or len(states) < num_beats:
            await ctx.tick()

    async def events(ctx: Any) -> None:
        left: list[int] = []
        seen = 0
        while True:
            left += ran.events[seen:]
            seen = len(ran.events)
            wanted = ctx.get(dut.waits.payload)
            ctx.set(dut.waits.ready, wanted in left)
            _, _, valid, ready = await ctx.tick().sample(dut.waits.valid, dut.waits.ready)
            if valid and ready:
                left.remove(wanted)
                ran.waited.append(wanted)

    async def watch(ctx: Any) -> None:
        cycle, reads = 0, dut.engine.tiles.reads
        while True:
            _, _, is_beat, failed = await ctx.tick().sample(reads.valid & reads.ready, dut.failed)
            cycle, ran.failed = cycle + 1, ran.failed + failed
            ran.beats.extend([cycle] if is_beat else [])

    ports = [served.read_port(port) for port in dut.reads] + [served.write_port(dut.write)]
    processes = [process for port in ports for process in port]
    sinks = [sink(dut.sets, ran.events, stalls=stalls), sink(dut.states, states, stalls=stalls)]
    simulate(dut, bench, background=[*sinks, events, watch, *processes])
    ran.records = packets_of(states)
    return ran
