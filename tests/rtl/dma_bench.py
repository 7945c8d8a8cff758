"""What cocotb runs on Icarus Verilog: four readers and a writer on one memory of cocotbext-axi, which judges bursts.

Started by test_dma_axi.py, in the simulator's process. The memory has a latency, row misses and a shared data bus, all
written here once more: what they mean is said in `mcf.rtl.mesh.ddr`.
"""

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.queue import Queue
from cocotb.triggers import ClockCycles, Lock, RisingEdge
from cocotbext.axi import AxiRamRead, AxiRamWrite, AxiReadBus, AxiWriteBus
from cocotbext.axi.sparse_memory import SparseMemory

from dma_work import NUM_READERS, Work, random_work, tiles_work
from mcf.rtl.golden.dma import read, write

SEED = int(os.environ.get("MCF_SEED", "1"))
CASE = json.loads(
    os.environ.get("MCF_CASE", "{}")
)  # of the last test: parameters of Timing, tiles, where to tell cycles


class Timing:
    """Cycles, the data bus and open rows, shared by all ports."""

    def __init__(self, clock, *, latency: int = 0, row_miss: int = 0, bytes_per_cycle: float = 1000.0) -> None:
        self.latency, self.row_miss, self.rate = latency, row_miss, bytes_per_cycle
        self.clock, self.cycle, self.left, self.lock = clock, 0, 0.0, Lock()
        self.rows: dict[int, int] = {}
        self.free: dict[int, int] = {}
        cocotb.start_soon(self._count())

    async def _count(self) -> None:
        while True:
            await RisingEdge(self.clock)
            self.cycle += 1
            self.left = min(self.left, 16.0) + self.rate

    async def beat(self) -> None:
        """Wait for a beat's share of the bus; first come, first served."""
        async with self.lock:
            while self.left < 16:
                await RisingEdge(self.clock)
            self.left -= 16

    def due(self, address: int) -> int:
        """When a burst that comes now may begin."""
        row, bank = divmod(address >> 13, 16)
        due = max(self.cycle + self.latency, self.free.get(bank, 0))
        if self.rows.get(bank) != row:
            due += self.row_miss
        self.rows[bank], self.free[bank] = row, due
        return due


class Late:
    """What goes to a channel or comes from it, later: addresses by their rows, answers by the latency alone."""

    def __init__(self, channel, timing: Timing) -> None:
        self.channel, self.timing, self.queue = channel, timing, Queue()

    def receiving(self) -> "Late":
        cocotb.start_soon(self._receive())
        return self

    def sending(self) -> "Late":
        cocotb.start_soon(self._send())
        return self

    async def _receive(self) -> None:
        while True:
            burst = await self.channel.recv()
            self.queue.put_nowait((self.timing.due(int(burst.araddr)), burst))

    async def recv(self):
        due, burst = await self.queue.get()
        await self._until(due)
        return burst

    async def send(self, answer) -> None:
        self.queue.put_nowait((self.timing.cycle + self.timing.latency, answer))

    async def _send(self) -> None:
        while True:
            due, answer = await self.queue.get()
            await self._until(due)
            await self.channel.send(answer)

    async def _until(self, cycle: int) -> None:
        while self.timing.cycle < cycle:
            await RisingEdge(self.timing.clock)

    def __getattr__(self, name: str):
        return getattr(self.channel, name)


class Reads(AxiRamRead):
    """A read port. An address in `broken` answers SLVERR."""

    timing: Timing
    broken: range = range(0)

    async def _read(self, address, length):
        await self.timing.beat()
        if address in self.broken:
            raise ValueError(address)
        return await super()._read(address, length)


class Writes(AxiRamWrite):
    """The write port."""

    timing: Timing
    broken: range = range(0)

    async def _write(self, address, data):
        await self.timing.beat()
        if address in self.broken:
            raise ValueError(address)
        await super()._write(address, data)


class Bench:
    """The design, its memory, and everything that came out."""

    def __init__(self, dut, work: Work, **timing) -> None:
        self.dut, self.work, self.rng = dut, work, random.Random(SEED)
        cocotb.start_soon(Clock(dut.clk, 5, unit="ns").start())
        self.timing, self.memory = Timing(dut.clk, **timing), SparseMemory(2**40)
        self.memory.write(0, work.image)
        ends = dict(clock=dut.clk, reset=dut.rst, mem=self.memory)
        self.reads = [Reads(AxiReadBus.from_prefix(dut, f"reads__{i}_"), **ends) for i in range(NUM_READERS)]
        self.writes = Writes(AxiWriteBus.from_prefix(dut, "write_"), **ends)
        for port in self.reads:
            port.timing, port.ar_channel = self.timing, Late(port.ar_channel, self.timing).receiving()
        self.writes.timing, self.writes.b_channel = self.timing, Late(self.writes.b_channel, self.timing).sending()
        self.beats: list[list[tuple[int, int]]] = [[] for _ in self.reads]
        self.cycles: list[list[int]] = [[] for _ in self.reads]
        self.done: list[int] = []
        self.failed = [0] * (NUM_READERS + 1)

    def pause(self, chance: float) -> None:
        """Let every channel hesitate at random."""
        channels = [c for port in self.reads for c in (port.ar_channel.channel, port.r_channel)]
        channels += [self.writes.aw_channel, self.writes.w_channel, self.writes.b_channel.channel]
        for number, channel in enumerate(channels):
            channel.set_pause_generator(pauses(random.Random(1000 * SEED + number), chance))

    async def run(self, *, stall: float = 0.0) -> int:
        """Obey the work; return the cycles from the first request to the last beat or answer."""
        dut, work = self.dut, self.work
        for name in ("put__valid", "words__valid", *(f"fetch__{i}__valid" for i in range(NUM_READERS))):
            getattr(dut, name).value = 0
        for i in range(NUM_READERS):
            getattr(dut, f"beats__{i}__ready").value = 0
        dut.rst.value = 1
        await ClockCycles(dut.clk, 4)
        dut.rst.value = 0
        await RisingEdge(dut.clk)
        began = self.timing.cycle
        cocotb.start_soon(self._watch())
        for i in range(NUM_READERS):
            cocotb.start_soon(self._offer(f"fetch__{i}", [request(*r) for r in work.fetches[i]]))
        cocotb.start_soon(self._offer("put", [request(*r) for r in work.puts]))
        cocotb.start_soon(self._offer("words", list(work.words)))
        takers = [cocotb.start_soon(self._take(i, stall)) for i in range(NUM_READERS)]
        for taker in takers:
            await taker
        while len(self.done) < len(work.puts):
            await RisingEdge(dut.clk)
        return self.timing.cycle - began

    async def _offer(self, name: str, items: list[int]) -> None:
        valid, ready, payload = (getattr(self.dut, f"{name}__{part}") for part in ("valid", "ready", "payload"))
        for item in items:
            payload.value, valid.value = item, 1
            await RisingEdge(self.dut.clk)
            while not ready.value:
                await RisingEdge(self.dut.clk)
        valid.value = 0

    async def _take(self, i: int, stall: float) -> None:
        valid, ready, payload = (getattr(self.dut, f"beats__{i}__{part}") for part in ("valid", "ready", "payload"))
        total = sum(beats for _, beats in self.work.fetches[i])
        while len(self.beats[i]) < total:
            ready.value = self.rng.random() >= stall
            await RisingEdge(self.dut.clk)
            if valid.value and ready.value:
                self.beats[i].append((int(payload.value), int(self.dut.bad.value[i])))
                self.cycles[i].append(self.timing.cycle)
        ready.value = 0

    async def _watch(self) -> None:
        dut = self.dut
        while True:
            await RisingEdge(dut.clk)
            if dut.done__valid.value:
                self.done.append(int(dut.done__payload.value))
            failed = int(dut.failed.value)
            if failed:
                self.failed = [n + (failed >> i & 1) for i, n in enumerate(self.failed)]

    def check(self) -> None:
        """Every reader's beats, and memory in the end; errors leave zeros in beats and nothing in memory."""
        for i, port in enumerate(self.reads):
            places = [address + 16 * k for address, beats in self.work.fetches[i] for k in range(beats)]
            words = read(self.work.image, self.work.fetches[i])
            expected = [(0, 1) if p in port.broken else (w, 0) for p, w in zip(places, words, strict=True)]
            assert self.beats[i] == expected
            assert self.failed[i] == sum(bad for _, bad in expected)
        image = bytearray(self.work.image)
        write(image, self.work.puts, self.work.words)
        for place in self.writes.broken:
            image[place] = self.work.image[place]
        assert self.memory.read(0, len(image)) == image


def request(address: int, beats: int) -> int:
    return address | beats << 40


def pauses(rng: random.Random, chance: float) -> Iterator[bool]:
    while True:
        yield rng.random() < chance


def rate_of(cycles: list[int]) -> float:
    """Beats per cycle, from the first on."""
    return len(cycles) / (cycles[-1] - cycles[0] + 1)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def four_readers_and_a_writer_share_a_memory_bit_by_bit(dut) -> None:
    bench = Bench(dut, random_work(SEED), latency=20, row_miss=5)
    bench.pause(0.3)
    await bench.run(stall=0.2)
    bench.check()
    assert bench.done == [0] * len(bench.work.puts)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_beat_comes_per_cycle_that_memory_gives(dut) -> None:
    bench = Bench(dut, tiles_work(SEED, tiles=3), latency=64)
    chance = 0.2
    gives: list[list[bool]] = [[], []]
    for i, told in enumerate(gives):
        bench.reads[i].r_channel.set_pause_generator(listen(pauses(random.Random(SEED + i), chance), told))
        bench.reads[i + 2].ar_channel.channel.set_pause_generator(pauses(random.Random(SEED + 2 + i), 0.5))
    await bench.run()
    bench.check()
    rates = [rate_of(cycles) for cycles in bench.cycles]
    for i, told in enumerate(gives):
        open_cycles = len(told) - sum(told)
        assert rates[i] >= 0.95 * open_cycles / len(told), (rates, told)
    assert min(rates[2:]) >= 0.95, rates


def listen(values: Iterator[bool], into: list[bool]) -> Iterator[bool]:
    for value in values:
        into.append(value)
        yield value


@cocotb.test(timeout_time=200, timeout_unit="us")
async def errors_are_told_and_nothing_hangs(dut) -> None:
    bench = Bench(dut, random_work(SEED + 1), latency=10)
    middle = next(address for address, beats in bench.work.fetches[2] if beats)
    bench.reads[2].broken = range(middle - 64, middle + 64)
    first = next(n for n, (_, beats) in enumerate(bench.work.puts) if beats)
    address = bench.work.puts[first][0]
    bench.writes.broken = range(address, address + 16)
    bench.pause(0.2)
    await bench.run(stall=0.1)
    bench.check()
    assert bench.failed[2] > 0
    assert bench.failed[NUM_READERS] == 1
    assert bench.done == [int(n == first) for n in range(len(bench.work.puts))]


@cocotb.test(timeout_time=400, timeout_unit="us")
async def cycles_of_a_run_of_tiles(dut) -> None:
    bench = Bench(dut, tiles_work(SEED, tiles=CASE["tiles"]), **CASE["timing"])
    for number, channel in enumerate([*(port.r_channel for port in bench.reads), bench.writes.w_channel]):
        channel.set_pause_generator(pauses(random.Random(SEED + number), CASE["stall"]))
    cycles = await bench.run()
    bench.check()
    Path(CASE["told"]).write_text(str(cycles))
