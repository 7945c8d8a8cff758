"""The writer against an image of memory: any requests, latencies, pauses, errors."""

import random
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from axi_memory import Memory
from mcf.rtl.golden.dma import bursts, write
from mcf.rtl.hdl.dma_write import DmaWrite
from rtl_streams import simulate, source, tally

SIZE = 1 << 16


class Run:
    """A writer that obeys requests until all of them are done."""

    def __init__(self, memory: Memory, requests: list[tuple[int, int]], words: list[int], *, gap: float = 0.0) -> None:
        dut = DmaWrite()
        self.done: list[int] = []
        self.pulses: dict[str, int] = {}
        self.cycles: list[int] = []  # of beats that memory took

        async def finished(ctx: Any) -> None:
            cycle = 0
            while len(self.done) < len(requests):
                names = (dut.done.valid, dut.done.payload, dut.axi.wvalid, dut.axi.wready)
                _, _, valid, bad, w_valid, w_ready = await ctx.tick().sample(*names)
                self.done.extend([bad] * valid)
                self.cycles.extend([cycle] * (w_valid & w_ready))
                cycle += 1
                assert cycle < 60 * len(words) + 2000, f"{len(self.done)} of {len(requests)} requests are done"

        asked = [{"address": address, "beats": beats} for address, beats in requests]
        background = [*memory.write_port(dut.axi), tally({"failed": dut.failed}, self.pulses)]
        feed = source(dut.data, words, stalls=gap)
        simulate(dut, source(dut.requests, asked), finished, background=[*background, feed])


def requests_of(seed: int, count: int, longest: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    return [(rng.randrange((SIZE >> 4) - longest) << 4, rng.choice((0, 1, 2, 15, 17, longest))) for _ in range(count)]


def words_for(requests: list[tuple[int, int]]) -> list[int]:
    rng = random.Random(5)
    return [rng.getrandbits(128) for _, beats in requests for _ in range(beats)]


@pytest.mark.parametrize(("latency", "pause", "gap"), [(0, 0.0, 0.0), (20, 0.3, 0.1), (5, 0.1, 0.6)])
def test_any_requests_leave_their_beats_in_memory(latency: int, pause: float, gap: float) -> None:
    requests = requests_of(seed=latency, count=16, longest=70)
    words = words_for(requests)
    memory = Memory(image=bytearray(SIZE), latency=latency, pause=pause, seed=latency)
    run = Run(memory, requests, words, gap=gap)
    expected = bytearray(SIZE)
    write(expected, requests, words)
    assert memory.image == expected
    assert memory.writes == [burst for request in requests for burst in bursts(*request)]
    assert run.done == [0] * len(requests)
    assert run.pulses == {"failed": 0}
    assert 1 < memory.most_under_way <= 16


def test_a_beat_leaves_every_cycle() -> None:
    requests = [(0x40, 400)]
    run = Run(Memory(image=bytearray(SIZE), latency=64), requests, words_for(requests))
    assert len(run.cycles) == 400
    assert run.cycles[0] < 30
    assert run.cycles[-1] - run.cycles[0] + 1 <= 400 / 0.98


def test_errors_are_told_with_the_request_and_counted() -> None:
    requests = [(0x1000, 40), (0x2000, 3), (0x5000, 0), (0x3000, 10)]
    broken = {0x1000, 0x1100, 0x2010}
    memory = Memory(image=bytearray(SIZE), latency=9, broken=lambda address: address in broken)
    run = Run(memory, requests, words_for(requests))
    assert run.done == [1, 1, 0, 0]
    assert run.pulses == {"failed": 3}
    last = words_for(requests)[-1].to_bytes(16, "little")
    assert memory.image[0x3000 + 16 * 9 : 0x3000 + 16 * 10] == last


def test_requests_of_nothing_are_done_in_turn() -> None:
    requests = [(0, 0), (0x100, 5), (0, 0), (0, 0)]
    run = Run(Memory(image=bytearray(SIZE), latency=30), requests, words_for(requests))
    assert run.done == [0, 0, 0, 0]
