"""Events, the barrier, completions and counters against their models, with random traffic and stalls."""

import random
from collections import Counter

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.golden.events import MOST_PENDING, BarrierCount, EventCounts
from mcf.rtl.hdl.barrier import Barrier
from mcf.rtl.hdl.completions import Completions
from mcf.rtl.hdl.events import NUM_SOURCES, Events
from mcf.rtl.hdl.perf import Perf
from mcf.rtl.registers import COUNTER_INDEX, COUNTERS
from rtl_streams import put, simulate, sink, source, tally


def watch(events: Events, log: list):
    """Write down what is set, taken and lost, in order."""

    async def bench(ctx) -> None:
        ports = [*events.sets, events.waits]
        while True:
            sampled = await ctx.tick().sample(
                events.lost, *(p.valid & p.ready for p in ports), *(p.payload for p in ports)
            )
            lost, done, numbers = sampled[2], sampled[3 : 3 + len(ports)], sampled[3 + len(ports) :]
            log.extend(["lost"] * lost)
            log.extend(("take" if i == NUM_SOURCES else "set", numbers[i]) for i, is_done in enumerate(done) if is_done)

    return bench


@pytest.mark.parametrize("seed", [1, 2])
def test_each_wait_takes_one_set_and_none_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    events, log = Events(), []
    per_source = [[rng.choice([0, 255, *range(1, 25)]) for _ in range(25)] for _ in range(NUM_SOURCES)]
    waits = [number for numbers in per_source for number in numbers if number]
    rng.shuffle(waits)
    benches = [source(events.sets[i], numbers, stalls=0.6, seed=seed + i) for i, numbers in enumerate(per_source)]
    waiting = source(events.waits, waits, stalls=0.1, seed=seed)
    model = EventCounts()
    assert max(Counter(waits).values()) <= MOST_PENDING
    simulate(events, *benches, waiting, background=[watch(events, log)])
    for what, number in (entry for entry in log if entry != "lost"):
        if what == "set":
            model.set(number)
        else:
            model.take(number)  # refuses what hardware must not grant
    assert +model.pending == Counter()
    assert Counter(number for what, number in log if what == "take") == Counter(waits)


def test_a_set_too_many_is_lost_and_told() -> None:
    events, log = Events(), []
    sets = source(events.sets[2], [7] * (MOST_PENDING + 2))
    waits = source(events.waits, [7] * MOST_PENDING)

    async def bench(ctx) -> None:
        await sets(ctx)
        await ctx.tick().repeat(3)
        await waits(ctx)
        ctx.set(events.waits.valid, 1)
        for _ in range(20):
            *_, is_ready = await ctx.tick().sample(events.waits.ready)
            assert not is_ready

    simulate(events, bench, background=[watch(events, log)])
    assert log.count("lost") == 2


def test_an_operation_is_done_in_each_cycle_where_there_are_some() -> None:
    events, done, cycles = Events(), [], []
    count = 30
    benches = [source(port, [number + 1] * (count // NUM_SOURCES)) for number, port in enumerate(events.sets)]

    async def clock(ctx) -> None:
        while len(done) < count:
            *_, is_done = await ctx.tick().sample(events.operation.valid)
            cycles.append(is_done)
            done.extend([is_done] * is_done)

    simulate(events, *benches, clock)
    assert cycles[2:26] == [1] * 24  # then the last sources are alone, each every other cycle


def test_nothing_moves_while_a_wait_finds_nothing() -> None:
    """Else a mesh that stands still would never be seen to."""
    events, looks = Events(), {}

    async def bench(ctx) -> None:
        ctx.set(events.waits.payload, 3)
        ctx.set(events.waits.valid, 1)
        await ctx.tick().repeat(40)

    simulate(events, bench, background=[tally({"looks": events.operation.valid}, looks)])
    assert looks == {"looks": 1}


def test_a_clear_forgets_what_is_pending() -> None:
    events, log = Events(), []

    async def bench(ctx) -> None:
        await source(events.sets[0], [3, 250, 250])(ctx)
        ctx.set(events.clear, 1)
        await ctx.tick()
        ctx.set(events.clear, 0)
        await ctx.tick().until(~events.clearing)
        for number in (3, 250):
            ctx.set(events.waits.payload, number)
            ctx.set(events.waits.valid, 1)
            for _ in range(6):
                *_, is_ready = await ctx.tick().sample(events.waits.ready)
                assert not is_ready
            await put(ctx, events.sets[1], number)
            await put(ctx, events.waits, number)

    simulate(events, bench, background=[watch(events, log)])
    assert [entry for entry in log if entry[0] == "take"] == [("take", 3), ("take", 250)]


@pytest.mark.parametrize("peers", [1, 3])
def test_the_barrier_completes_as_its_model(peers: int) -> None:
    rng = random.Random(peers)
    barrier, model, events = Barrier(), BarrierCount(peers=peers), []
    tags = [epoch for epoch in range(0, 20, 2) for _ in range(peers)]
    tags = [tag + rng.randrange(2) for tag in tags]  # two epochs overlap
    expected = sum(model.arrive(tag) for tag in tags)
    arriving = source(barrier.arrivals, tags, stalls=0.3, seed=peers)

    async def bench(ctx) -> None:
        ctx.set(barrier.peers, peers)
        ctx.set(barrier.event, 44)
        await arriving(ctx)
        await ctx.tick().repeat(30)

    simulate(barrier, bench, background=[sink(barrier.sets, events, stalls=0.5)])
    assert events == [44] * expected
    assert expected >= 5


@pytest.mark.parametrize("stalls", [0.0, 0.8])
def test_what_follows_a_packet_follows_in_order_and_only_when_it_has_left(stalls: float) -> None:
    rng = random.Random(5)
    unit, sets, counts = Completions(size=8, in_flight=4), [], {}
    issues = [{"set": rng.choice([0, 5, 6]), "tag": rng.choice([0, rng.randrange(1, 1 << 16)])} for _ in range(40)]
    issued: list[int] = []

    async def issue(ctx) -> None:
        for entry in issues:
            await put(ctx, unit.issued, entry)
            issued.append(entry["tag"])

    async def retire(ctx) -> None:
        for number in range(len(issues)):
            while rng.random() < stalls or len(issued) <= number:
                assert len(sets) <= sum(1 for entry in issues[:number] if entry["set"])
                await ctx.tick()
            ctx.set(unit.clock, 1000 + number)
            ctx.set(unit.retired, 1)
            await ctx.tick()
            ctx.set(unit.retired, 0)

    async def software(ctx) -> None:
        tail = 0
        for tag in (entry["tag"] for entry in issues if entry["tag"]):
            while ctx.get(unit.head) == tail:
                await ctx.tick()
            for part, expected in ((0, tag), (1, None)):
                ctx.set(unit.read.payload, 2 * (tail % 8) + part)
                ctx.set(unit.read.valid, 1)
                await ctx.tick()
                ctx.set(unit.read.valid, 0)
                assert expected is None or ctx.get(unit.data) == expected
            tail = (tail + 1) % 16
            ctx.set(unit.tail, tail)

    background = [sink(unit.sets, sets, stalls=stalls), tally({"lost": unit.lost}, counts)]
    simulate(unit, issue, retire, software, background=background)
    assert sets == [entry["set"] for entry in issues if entry["set"]]
    assert counts == {"lost": 0}


def test_a_completion_that_finds_the_ring_full_is_lost_and_told() -> None:
    unit, counts = Completions(size=4), {}

    async def bench(ctx) -> None:
        for tag in range(1, 7):
            await put(ctx, unit.issued, {"set": 0, "tag": tag})
            ctx.set(unit.retired, 1)
            await ctx.tick()
            ctx.set(unit.retired, 0)
        await ctx.tick().repeat(20)
        assert (ctx.get(unit.head), ctx.get(unit.waiting)) == (4, 4)

    simulate(unit, bench, background=[tally({"lost": unit.lost}, counts)])
    assert counts == {"lost": 2}


async def read_counter(ctx, perf: Perf, index: int) -> int:
    words = []
    for part in (0, 1):
        ctx.set(perf.read.payload, 2 * index + part)
        ctx.set(perf.read.valid, 1)
        await ctx.tick()
        ctx.set(perf.read.valid, 0)
        words.append(ctx.get(perf.data))
    return words[0] | words[1] << 32


def test_the_counters_are_the_sums_of_what_happened() -> None:
    rng = random.Random(9)
    perf, sums = Perf(), Counter()

    async def bench(ctx) -> None:
        for cycle in range(400):
            busy = cycle < 200 or rng.random() < 0.1
            amounts = {c.name: rng.choice([c.most, rng.randint(0, c.most)]) if busy else 0 for c in COUNTERS}
            ctx.set(perf.amounts, amounts)
            sums.update(amounts)
            await ctx.tick()
        ctx.set(perf.amounts, {})
        await ctx.tick().repeat(2 * len(COUNTERS))
        assert {c.name: await read_counter(ctx, perf, COUNTER_INDEX[c.name]) for c in COUNTERS} == dict(sums)
        ctx.set(perf.clear, 1)
        await ctx.tick()
        ctx.set(perf.clear, 0)
        await ctx.tick().until(~perf.clearing)
        assert [await read_counter(ctx, perf, i) for i in range(len(COUNTERS))] == [0] * len(COUNTERS)

    simulate(perf, bench)


def test_the_high_word_is_of_the_moment_of_the_low_one() -> None:
    perf = Perf()
    index = COUNTER_INDEX["dropped_length"]

    async def bench(ctx) -> None:
        ctx.set(perf.totals[index], 0xFFFFFFFF)
        ctx.set(perf.read.payload, 2 * index)
        ctx.set(perf.read.valid, 1)
        await ctx.tick()
        ctx.set(perf.read.valid, 0)
        assert ctx.get(perf.data) == 0xFFFFFFFF
        ctx.set(perf.amounts, {"dropped_length": 1})
        await ctx.tick()
        ctx.set(perf.amounts, {})
        await ctx.tick().repeat(2 * len(COUNTERS))  # the carry goes into the high word meanwhile
        ctx.set(perf.read.payload, 2 * index + 1)
        ctx.set(perf.read.valid, 1)
        await ctx.tick()
        assert ctx.get(perf.data) == 0
        assert await read_counter(ctx, perf, index) == 1 << 32

    simulate(perf, bench)
