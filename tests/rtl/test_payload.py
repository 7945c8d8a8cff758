"""The ring of commands and the payload of packets, with stalls."""

import random

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from gateware import Bench, beat
from mcf.rtl.descriptor import STATE_BIT
from mcf.rtl.hdl.command_ring import WORDS, CommandRing
from mcf.rtl.hdl.payload import Payload
from rtl_streams import put, simulate, sink

STALLS = [(1, 0.0, 0.0), (2, 0.3, 0.4)]


@pytest.mark.parametrize("stalls", [0.0, 0.6])
def test_commands_leave_in_order_as_they_were_written(stalls: float) -> None:
    rng, size = random.Random(3), 4
    dut, commands, got = CommandRing(size), [rng.getrandbits(256) for _ in range(11)], []

    async def bench(ctx) -> None:
        for number, command in enumerate(commands):
            await ctx.tick().until((number - dut.head)[:3] < size)
            for word in range(WORDS):
                at = number % size * WORDS + word
                await put(ctx, dut.write, {"index": at, "data": command >> 32 * word & 0xFFFFFFFF})
            ctx.set(dut.tail, (number + 1) % (2 * size))
        await ctx.tick().until(dut.head == len(commands) % (2 * size))

    simulate(dut, bench, background=[sink(dut.commands, got, stalls=stalls)])
    assert [one.as_value().value if hasattr(one, "as_value") else one for one in got] == commands


@pytest.mark.parametrize("bad", range(4))
def test_a_run_with_a_bad_beat_has_another_length(bad: int) -> None:
    dut, got = Payload(), []

    async def memory(ctx) -> None:
        for number in range(8):
            ctx.set(dut.bad, number == bad)
            await put(ctx, dut.data, number)

    async def bench(ctx) -> None:
        for _ in range(2):
            await put(ctx, dut.fetch, {"address": 0, "beats": 4})
        await ctx.tick().repeat(40)

    simulate(dut, bench, background=[memory, sink(dut.requests, []), sink(dut.payload, got)])
    lasts = [number for number, one in enumerate(got) if one.last]
    assert [one.data for one in got[lasts[0] + 1 :]] == [4, 5, 6, 7]
    assert [lasts[0] + 1, lasts[1] - lasts[0]] == [5 if bad == 3 else bad + 1, 4]


@pytest.mark.parametrize(("seed", "pause", "stall"), STALLS)
def test_states_and_memory_answer_in_the_order_of_the_fetches(seed: int, pause: float, stall: float) -> None:
    rng, dut = random.Random(seed), Payload()
    fetches, states, words, wanted = [], [], iter(range(1 << 20, 1 << 21)), []
    asked, memory = [], []
    for _ in range(30):
        is_state, beats = rng.random() < 0.4, rng.choice([1, 2, 17, 5])
        address = rng.randrange(1 << 20) * 16 | is_state << STATE_BIT
        run = [(next(words), int(i == beats - 1)) for i in range(beats)]
        fetches.append({"address": address, "beats": beats})
        wanted += run
        if is_state:
            states += [{"data": word, "last": last} for word, last in run]
        else:
            memory += [word for word, _ in run]
            asked.append((address, beats))
    bench = Bench(
        dut,
        sources={"fetch": (dut.fetch, fetches), "states": (dut.states, states), "data": (dut.data, memory)},
        sinks={"requests": (dut.requests, lambda p: (p.address, p.beats)), "payload": (dut.payload, beat)},
        seed=seed,
        pause=pause,
        stall=stall,
    ).run(20 * len(wanted), until=lambda b: len(b.passed["payload"]) == len(wanted))
    assert bench.items("payload") == wanted
    assert bench.items("requests") == asked
