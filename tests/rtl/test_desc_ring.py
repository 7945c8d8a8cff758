"""The ring in hardware asks for exactly the packets of the golden model, whatever stalls."""

import random
from itertools import pairwise

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.descriptor import FIELDS, pack_descriptor, words_of
from mcf.rtl.golden.desc_ring import Item, expand
from mcf.rtl.hdl.desc_ring import DescRing
from rtl_streams import simulate, source

SIZE = 4  # entries: small, so that the ring wraps
WORDS = 8
BAD = (3 << FIELDS["beats"].low, 8 << FIELDS["address"].low)  # payload without a length; an address inside a beat


def random_descriptor(rng: random.Random) -> int:
    if rng.random() < 0.1:
        return rng.choice(BAD)
    most = rng.choice([0, 1, 17, 64])
    steps = {f.name: rng.choice(f.span) for f in FIELDS.values() if f.name.startswith("step_")}
    return pack_descriptor(
        {"src": rng.randrange(1024), "block": rng.randrange(1 << 14), "layer": rng.randrange(128), "len": most}
        | {"head": rng.randrange(32), "tag": rng.randrange(256), "flags": rng.randrange(16), "slot": rng.randrange(32)},
        **dict(steps, address=16 * rng.randrange(1 << 36), beats=rng.choice([0, 1, 64, 130]) if most else 0),
        **dict(repeat=rng.randrange(4), done_tag=rng.randrange(1 << 16)),
        **dict(wait_event=rng.choice([0, 3, 200]), set_event=rng.choice([0, 9])),
        **dict(wait_each=rng.randrange(2), set_each=rng.randrange(2)),
    )


def entry(index: int, word: int) -> list[dict[str, int]]:
    return [{"index": index * WORDS + i, "data": part} for i, part in enumerate(words_of(word))]


def run(words: list[int], *, stalls: float, seed: int) -> tuple[list[Item], int]:
    """The items that hardware gives, each with the event taken before it, and the bad descriptors it counted."""
    rng = random.Random(seed)
    ring = DescRing(SIZE)
    items: list[Item] = []
    waits: list[int] = []  # events taken since the last item
    bad: list[int] = []

    async def write(ctx) -> None:
        ctx.set(ring.enable, 1)
        for number, word in enumerate(words):
            while (number - ctx.get(ring.head)) % (2 * SIZE) >= SIZE:
                await ctx.tick()
            await source(ring.write, entry(number % SIZE, word), stalls=stalls, seed=number)(ctx)
            ctx.set(ring.tail, (number + 1) % (2 * SIZE))
        while ctx.get(ring.head) != len(words) % (2 * SIZE) or ctx.get(ring.busy):
            await ctx.tick()

    async def watch(ctx) -> None:
        ports = (ring.items.valid, ring.items.ready, ring.items.payload, ring.waits.valid, ring.waits.ready)
        while True:
            ctx.set(ring.items.ready, rng.random() >= stalls)
            ctx.set(ring.waits.ready, rng.random() >= stalls)
            sampled = await ctx.tick().sample(*ports, ring.waits.payload, ring.bad)
            *_, is_asked, is_taken, packet, is_waiting, is_there, event, is_bad = sampled
            if is_waiting and is_there:
                waits.append(event)
            if is_asked and is_taken:
                fields = {name: packet[name] for name in ("meta", "address", "beats", "set", "tag")}
                items.append(Item(**fields, wait=waits.pop() if waits else 0))
                assert waits == []
            bad.append(is_bad)

    simulate(ring, write, background=[watch])
    return items, sum(bad)


@pytest.mark.parametrize("stalls", [0.0, 0.7])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_items_are_those_of_the_golden_model(stalls: float, seed: int) -> None:
    rng = random.Random(seed)
    words = [random_descriptor(rng) for _ in range(25)]
    items, num_bad = run(words, stalls=stalls, seed=seed)
    assert items == [item for word in words for item in expand(word)]
    assert num_bad == sum(word in BAD for word in words)


def test_nothing_leaves_before_its_event() -> None:
    ring = DescRing(SIZE)
    word = pack_descriptor({"len": 4}, beats=4, repeat=1, wait_event=5, wait_each=1)

    async def bench(ctx) -> None:
        ctx.set(ring.enable, 1)
        await source(ring.write, entry(0, word))(ctx)
        ctx.set(ring.tail, 1)
        ctx.set(ring.items.ready, 1)
        for _ in range(2):
            for _ in range(40):
                *_, asked = await ctx.tick().sample(ring.items.valid)
                assert not asked
            assert ctx.get(ring.waits.valid)
            assert ctx.get(ring.waits.payload) == 5
            ctx.set(ring.waits.ready, 1)
            await ctx.tick()
            ctx.set(ring.waits.ready, 0)
            await ctx.tick().until(ring.items.valid)
        await ctx.tick().until(ring.finished)

    simulate(ring, bench)


def test_a_ring_that_is_not_enabled_takes_nothing() -> None:
    ring = DescRing(SIZE)

    async def bench(ctx) -> None:
        ctx.set(ring.tail, 1)
        ctx.set(ring.items.ready, 1)
        for _ in range(40):
            *_, asked, is_busy = await ctx.tick().sample(ring.items.valid, ring.busy)
            assert (asked, is_busy) == (0, 0)
        ctx.set(ring.enable, 1)  # an entry of zeros is one header
        await ctx.tick().until(ring.items.valid)

    simulate(ring, bench)


def test_descriptors_of_one_packet_follow_each_other_within_eight_cycles() -> None:
    ring = DescRing()
    word = pack_descriptor({"len": 17}, beats=17)
    starts: list[int] = []

    async def bench(ctx) -> None:
        for number in range(20):
            await source(ring.write, entry(number, word))(ctx)
        ctx.set(ring.tail, 20)
        ctx.set(ring.enable, 1)
        ctx.set(ring.items.ready, 1)
        for cycle in range(400):
            _, _, asked = await ctx.tick().sample(ring.items.valid)
            starts.extend([cycle] * asked)

    simulate(ring, bench)
    assert len(starts) == 20
    assert max(b - a for a, b in pairwise(starts)) <= 8
