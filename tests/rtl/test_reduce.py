"""The reduction unit against its golden model, bit for bit, and what it does with what does not fit."""

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.golden.reduce import ReduceModel, Setup
from mcf.rtl.golden.state import EMPTY_EXPONENT, BlockState, to_beats
from mcf.rtl.hdl.reduce import Reduce
from mcf.schedule.wire import Flags, Op, ReduceOp, pack
from rtl_streams import beats_of, packets_of, put, simulate, sink, source, tally

SLOTS, BEATS, ROUNDS = 4, 4, 6


def header(tag: int, op: ReduceOp, **fields: int) -> int:
    return pack({"op": Op.STATE, "reduce_op": op, "len": BEATS + 1, "tag": tag, **fields})


def state(rng: random.Random) -> BlockState:
    sum_ = rng.choice([rng.randrange(1 << 14, 1 << 15), rng.randrange(1 << 16) - (1 << 15), 0])
    near = rng.choice([rng.randrange(-4, 5), rng.randrange(-40, 40), EMPTY_EXPONENT])
    limit = rng.choice([1 << 15, max(abs(sum_), 1)])
    out = [rng.randrange(-limit, limit) for _ in range(8 * BEATS)]
    out[0] = rng.choice([-(1 << 15), (1 << 15) - 1])
    return BlockState(
        exponent=np.int64(near).reshape(()),
        sum_=np.int64(sum_).reshape(()),
        out=np.array(out, dtype=np.int64),
        count=np.int64(rng.randrange(1 << 16)).reshape(()),
    )


def packet(rng: random.Random, tag: int, op: ReduceOp, child: int, **fields: int) -> list[int]:
    return [header(tag, op, **fields), *to_beats(state(rng), child, BEATS)]


def setup(rng: random.Random, slot: int, children: int) -> Setup:
    op = rng.choice([ReduceOp.MERGE, ReduceOp.MERGE, ReduceOp.SUM, ReduceOp.MAX])
    child = rng.randrange(16)
    return Setup(tag=rng.randrange(64) * SLOTS + slot, children=children, child=child, header=header(slot, op, src=9))


def spoiled(rng: random.Random, good: list[int], one: Setup, op: ReduceOp) -> list[list[int]]:
    """The packet, and something before or after it that must not count."""
    other = one.tag ^ SLOTS
    kinds = [
        [good, good],  # twice
        [packet(rng, other, op, 0), good],  # another epoch
        [packet(rng, one.tag, op, 0, len=BEATS), good],  # another length
        [packet(rng, one.tag, ReduceOp((op % 3) + 1), 0), good],  # another operation
        [[good[0]], good],  # a header alone
        [[good[0], (one.children & 15) << 48, 0, 0], good] if one.children < 16 else [good],  # a child too many
    ]
    return rng.choice(kinds)


def round_of_traffic(rng: random.Random, hurt: float) -> tuple[list[Setup], list[list[int]]]:
    """Set-ups for every slot and all their packets, shuffled; some of them spoiled, some slots poisoned."""
    setups = [setup(rng, slot, rng.choice([1, 2, 3, 16])) for slot in range(SLOTS)]
    groups = []
    for one in setups:
        op = ReduceOp((one.header >> 13) & 7)
        for child in range(one.children):
            good = packet(rng, one.tag, op, child)
            if rng.random() < hurt / 8:
                good = rng.choice(
                    [good[:-1], good[:2], [*good, 5], packet(rng, one.tag, op, child, flags=Flags.POISONED)]
                )
            groups.append(spoiled(rng, good, one, op) if rng.random() < hurt else [good])
    rng.shuffle(groups)
    return setups, [packet for group in groups for packet in group]


@pytest.mark.parametrize(
    ("seed", "stalls", "backpressure", "hurt"), [(1, 0.0, 0.0, 0.0), (2, 0.2, 0.3, 0.3), (3, 0.0, 0.9, 0.3)]
)
def test_random_traffic_gives_what_the_model_gives(seed: int, stalls: float, backpressure: float, hurt: float) -> None:
    rng = random.Random(seed)
    design, model = Reduce(slots=SLOTS, beats=BEATS), ReduceModel(slots=SLOTS, beats=BEATS)
    rounds = [round_of_traffic(rng, hurt) for _ in range(ROUNDS)]
    merged: list[Any] = []
    counts: dict[str, int] = {}

    async def bench(ctx: Any) -> None:
        for setups, packets in rounds:
            for one in setups:
                assert model.arm(one)
                await put(ctx, design.write, vars(one))
            await source(design.packets, beats_of(packets), stalls=stalls, seed=seed)(ctx)
            for each in packets:
                model.packet(each)
            await ctx.tick().until(design.busy == 0)
        await ctx.tick().repeat(40 * (1 + int(10 * backpressure)))

    pulses = {name: design.dropped[name] for name in ("length", "slot", "child")} | {"refused": design.refused}
    simulate(
        design, bench, background=[sink(design.merged, merged, stalls=backpressure, seed=seed), tally(pulses, counts)]
    )
    # a duplicate meets a slot that is full, or one that has been emitted: which, depends on the time
    assert counts["slot"] + counts["child"] == model.dropped["slot"] + model.dropped["child"]
    assert (counts["length"], counts["refused"]) == (model.dropped["length"], 0)
    assert not hurt or all(model.dropped.values())
    got = packets_of(merged)
    assert [words[0] for words in got] == [result[0] for result in model.results]
    assert len(got) == ROUNDS * SLOTS
    for words, (_, expected) in zip(got, model.results, strict=True):
        assert len(words) == BEATS + 2
        assert expected is None or words[1:] == expected


def test_a_set_up_that_cannot_come_true_is_refused() -> None:
    rng = random.Random(4)
    design, model = Reduce(slots=SLOTS, beats=BEATS), ReduceModel(slots=SLOTS, beats=BEATS)
    good = setup(rng, 2, 3)
    tries = [
        good,
        good,  # in use
        setup(rng, 1, 0),
        setup(rng, 1, 17),
        Setup(tag=1, children=1, child=0, header=header(1, ReduceOp.SUM, len=BEATS)),
        setup(rng, 1, 16),
    ]
    counts: dict[str, int] = {}

    async def bench(ctx: Any) -> None:
        await source(design.write, [vars(one) for one in tries])(ctx)
        await ctx.tick().repeat(2)
        assert ctx.get(design.busy) == 0b0110

    simulate(design, bench, background=[tally({"refused": design.refused}, counts)])
    assert [model.arm(one) for one in tries] == [True, False, False, False, False, True]
    assert counts["refused"] == model.refused == 4


def test_the_input_never_waits_and_a_slot_is_free_only_when_its_result_is_out() -> None:
    rng = random.Random(5)
    design = Reduce(slots=SLOTS, beats=BEATS)
    setups = [Setup(tag=slot, children=2, child=0, header=header(slot, ReduceOp.SUM)) for slot in range(SLOTS)]
    packets = [packet(rng, slot, ReduceOp.SUM, child) for child in range(2) for slot in range(SLOTS)]

    async def bench(ctx: Any) -> None:
        await source(design.write, [vars(one) for one in setups])(ctx)
        for beat in beats_of(packets * 2):  # nobody takes results; the second time everything is a duplicate
            ctx.set(design.packets.payload, beat)
            ctx.set(design.packets.valid, 1)
            assert ctx.get(design.packets.ready)
            await ctx.tick()
        ctx.set(design.packets.valid, 0)
        await ctx.tick().repeat(20)
        assert ctx.get(design.busy) == 0b1100  # two results fit the queue, and one beat more leaves the third's slot

    simulate(design, bench)


def test_one_beat_per_cycle_and_eight_cycles_from_the_last_beat_to_the_result() -> None:
    rng = random.Random(6)
    design = Reduce()
    head = pack({"op": Op.STATE, "reduce_op": ReduceOp.MERGE, "len": 17})
    words = [head, *to_beats(state(rng), 0, 16)]

    async def bench(ctx: Any) -> None:
        await put(ctx, design.write, {"tag": 0, "children": 1, "child": 0, "header": head})
        await source(design.packets, beats_of([words]))(ctx)
        latency = 1
        while not ctx.get(design.merged.valid):
            await ctx.tick()
            latency += 1
        assert latency == 8
        ctx.set(design.merged.ready, 1)
        for _ in range(18):
            assert ctx.get(design.merged.valid)
            await ctx.tick()
        assert not ctx.get(design.merged.valid)

    simulate(design, bench)
