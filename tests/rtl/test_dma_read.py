"""The reader against a slice of memory: any requests, latencies, pauses, errors."""

import random
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from axi_memory import Memory
from mcf.rtl.golden.dma import bursts, read
from mcf.rtl.hdl.dma_read import DmaPingPong
from rtl_streams import simulate, source, tally

SIZE = 1 << 16


def image(seed: int = 1) -> bytearray:
    return bytearray(random.Random(seed).randbytes(SIZE))


def requests_of(seed: int, count: int, longest: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [
        (rng.randrange((SIZE >> 4) - longest) << 4, rng.choice((0, 1, 2, 15, 16, 17, longest))) for _ in range(count)
    ]


class Run:
    """A reader that obeys requests until all of their beats have come."""

    def __init__(
        self, dut: DmaPingPong, memory: Memory, requests: list[tuple[int, int]], *, stall: float = 0.0
    ) -> None:
        self.beats: list[tuple[int, int]] = []
        self.cycles: list[int] = []
        self.pulses: dict[str, int] = {}
        total = sum(beats for _, beats in requests)
        rng = random.Random(7)

        async def taken(ctx: Any) -> None:
            cycle = 0
            while len(self.beats) < total:
                ctx.set(dut.data.ready, rng.random() >= stall)
                names = (dut.data.valid, dut.data.ready, dut.data.payload, dut.bad)
                _, _, valid, ready, word, bad = await ctx.tick().sample(*names)
                cycle += 1
                assert cycle < 40 * total + 2000, f"{len(self.beats)} of {total} beats came"
                if valid and ready:
                    self.beats.append((word, bad))
                    self.cycles.append(cycle)

        asked = [{"address": address, "beats": beats} for address, beats in requests]
        background = [*memory.read_port(dut.axi), tally({"failed": dut.failed}, self.pulses)]
        simulate(dut, source(dut.requests, asked), taken, background=background)

    @property
    def words(self) -> list[int]:
        return [word for word, _ in self.beats]


@pytest.mark.parametrize(("latency", "pause", "stall"), [(0, 0.0, 0.0), (20, 0.3, 0.1), (5, 0.0, 0.6)])
def test_any_requests_give_the_bytes_of_memory_in_order(latency: int, pause: float, stall: float) -> None:
    requests = requests_of(seed=latency, count=16, longest=70)
    memory = Memory(image=image(), latency=latency, pause=pause, seed=latency)
    run = Run(DmaPingPong(depth=64, outstanding=4), memory, requests, stall=stall)
    assert run.words == read(memory.image, requests)
    assert memory.reads == [burst for request in requests for burst in bursts(*request)]
    assert memory.most_under_way <= 4
    assert run.pulses == {"failed": 0}


def test_a_beat_comes_every_cycle_behind_64_cycles_of_latency() -> None:
    requests = [(132 * 16 * number + 48, 132) for number in range(8)]
    memory = Memory(image=image(), latency=64)
    run = Run(DmaPingPong(), memory, requests)
    assert run.words == read(memory.image, requests)
    assert run.cycles[0] < 80
    assert len(run.cycles) >= 0.99 * (run.cycles[-1] - run.cycles[0] + 1)


def test_it_never_asks_for_more_than_it_has_room_for() -> None:
    requests, depth = [(0, 200)], 64
    dut, memory, taken = DmaPingPong(depth=depth, outstanding=16), Memory(image=image()), list[int]()

    async def patience(ctx: Any) -> None:
        await ctx.tick().repeat(300)
        assert sum(beats for _, beats in memory.reads) == depth
        ctx.set(dut.data.ready, 1)
        while len(taken) < 200:
            _, _, valid, word = await ctx.tick().sample(dut.data.valid, dut.data.payload)
            taken.extend([word] * valid)

    asked = [{"address": 0, "beats": 200}]
    simulate(dut, source(dut.requests, asked), patience, background=memory.read_port(dut.axi))
    assert taken == read(memory.image, requests)


def test_errors_are_marked_and_counted_and_nothing_hangs() -> None:
    requests = [(0x1000, 40), (0x2000, 3), (0x3000, 10)]
    broken = {0x1000 + 16 * 5, 0x1000 + 16 * 39, 0x2000, 0x2010, 0x2020}
    memory = Memory(image=image(), latency=9, broken=lambda address: address in broken)
    run = Run(DmaPingPong(), memory, requests)
    places = [address + 16 * i for address, beats in requests for i in range(beats)]
    assert [bad for _, bad in run.beats] == [int(place in broken) for place in places]
    assert run.words == read(memory.image, requests)
    assert run.pulses == {"failed": 5}
