"""The replica directory against its golden model, and the model against the schedule's transition table."""

import random
from itertools import product
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import ScheduleError
from mcf.rtl.golden.kv_dir import Answer, Entry, KvDirectoryModel
from mcf.rtl.hdl.kv_dir import KvDirectory
from mcf.rtl.hdl.kv_port import KvPort
from mcf.rtl.kv_ops import BLOCK_LOW, EVENTS, MAX_READERS, SERVING, KvCode, KvOp, set_of
from mcf.schedule.kv import ABSENT, DRAINING, STATE_NAMES, VALID, next_state
from rtl_streams import simulate, sink, source, tally

Asked = dict[str, int]


def run(asked: list[Asked], *, entries: int = 16, stalls: float = 0.0) -> tuple[list[Any], dict[str, int], int]:
    """Answers, counts of pulses, and the entries left, of the hardware."""
    design = KvDirectory(entries)
    answers: list[Any] = []
    counts: dict[str, int] = {}
    left = -1

    async def bench(ctx: Any) -> None:
        nonlocal left
        await source(design.ops, asked, stalls=stalls, seed=3)(ctx)
        while len(answers) < len(asked):
            await ctx.tick()
        left = ctx.get(design.occupied)

    simulate(
        design,
        bench,
        background=[
            sink(design.results, answers, stalls=stalls),
            tally({"refused": design.refused, "done": design.done}, counts),
        ],
    )
    return answers, counts, left


def ask(op: str, kv_id: int = 5, *, owner: int = 0, base: int = 0) -> Asked:
    return {"op": KvOp[op.upper()], "kv_id": kv_id, "owner": owner, "base": base}


def model_of(asked: list[Asked], entries: int = 16) -> tuple[list[Answer], KvDirectoryModel]:
    model = KvDirectoryModel(entries=entries)
    return [model.apply(a["op"], a["kv_id"], owner=bool(a["owner"]), base=a["base"]) for a in asked], model


def random_ops(rng: random.Random, count: int) -> list[Asked]:
    """Few names, so that every state meets every operation; events that lead on are likelier than others."""
    ids = [rng.randrange(1 << 32) for _ in range(24)]
    weights = [2, 2, 4, 2, 4, 2, 2, 6, 6, 1, 1]
    return [
        {
            "op": rng.choices(range(11), weights)[0],
            "kv_id": rng.choice(ids),
            "owner": int(rng.random() < 0.2),
            "base": rng.randrange(1 << 16),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize(("seed", "stalls"), [(1, 0.0), (2, 0.4)])
def test_random_operations_give_what_the_model_gives(seed: int, stalls: float) -> None:
    asked = random_ops(random.Random(seed), 1000)
    answers, counts, left = run(asked, stalls=stalls)
    expected, model = model_of(asked)
    got = [Answer(code=KvCode(a.code), base=a.base, state=a.state) for a in answers]
    for number, (one, other) in enumerate(zip(got, expected, strict=True)):
        assert one.code == other.code, (number, asked[number])
        if other.code <= KvCode.FREED:
            assert (one.base, one.state) == (other.base, other.state), (number, asked[number])
    assert {a.code for a in expected} == set(KvCode)
    assert counts["refused"] == sum(a.code > KvCode.FREED for a in expected)
    assert counts["done"] == len(asked) - counts["refused"]
    assert left == len(model.table)


@pytest.mark.parametrize("stalls", [pytest.param(0.0, marks=pytest.mark.full), 0.5])
def test_three_ask_in_turn_and_each_gets_its_own_answers(stalls: float) -> None:
    """The compute half, software, and packets, which get none; each asks for copies of its own."""
    streamed, asked, told = ([{**one, "kv_id": one["kv_id"] & ~3 | way} for one in random_ops(random.Random(way), 60)]
                             for way in range(3))  # fmt: skip
    design, answers, counts, read = KvPort(), [], {}, []

    async def software(ctx: Any) -> None:
        for one in asked:
            count = ctx.get(design.answer.count)
            ctx.set(design.asks.payload, one)
            ctx.set(design.asks.valid, 1)
            await ctx.tick()
            ctx.set(design.asks.valid, 0)
            while ctx.get(design.answer.count) == count:
                await ctx.tick()
            read.append((ctx.get(design.answer.code), ctx.get(design.answer.state)))

    async def end(ctx: Any) -> None:
        while sum(counts.values()) < 3 * len(asked) or len(answers) < len(streamed):
            await ctx.tick()

    simulate(
        design,
        software,
        source(design.ops, streamed, stalls=stalls, seed=3),
        source(design.packets, told, stalls=stalls, seed=4),
        end,
        background=[
            sink(design.results, answers, stalls=stalls),
            tally({"refused": design.refused, "done": design.done}, counts),
        ],
    )
    models = [model_of(ops, 256)[0] for ops in (streamed, asked, told)]
    assert [(a.code, a.state) for a in answers if a.code <= KvCode.FREED] == _done(models[0])
    assert [one for one in read if one[0] <= KvCode.FREED] == _done(models[1])
    assert [a.code for a in answers] == [a.code for a in models[0]]
    assert [code for code, _ in read] == [a.code for a in models[1]]
    assert counts["refused"] == sum(a.code > KvCode.FREED for found in models for a in found)


def _done(answers: list[Answer]) -> list[tuple[int, int]]:
    return [(a.code, a.state) for a in answers if a.code <= KvCode.FREED]


@pytest.mark.parametrize(("state", "event"), list(product(STATE_NAMES, EVENTS.values())))
def test_the_model_moves_by_the_schedules_table_and_no_other(state: int, event: str) -> None:
    model = KvDirectoryModel()
    if state != ABSENT:
        model.table[7] = Entry(state=state, base=0, owner=False)
    answer = model.apply(KvOp[event.upper()], 7)
    try:
        after = next_state(state, event)
    except ScheduleError:
        assert answer.code in (KvCode.STATE, KvCode.MISSING)
        assert answer.state == state
    else:
        assert (answer.code, answer.state) == (KvCode.OK, after)


def test_an_owner_is_neither_drained_freed_streamed_nor_replaced() -> None:
    life = [
        ask("produce", owner=1, base=9),
        *(ask(op) for op in ("drain", "free", "release", "stream", "recv", "look")),
    ]
    answers, counts, left = run([*life, ask("stream", 6, owner=1)])
    assert [a.code for a in answers] == [KvCode.OK, *[KvCode.OWNER] * 5, KvCode.OK, KvCode.OWNER]
    assert (answers[6].base, answers[6].state, counts["refused"], left) == (9, VALID, 6, 1)


def test_a_draining_copy_serves_no_new_reader_and_is_gone_with_its_last() -> None:
    names = "recv read arrive read read drain read free free read done done done recv"
    answers, _, left = run([ask(name) for name in names.split()])
    code = KvCode
    assert [a.code for a in answers] == [
        code.OK, code.STATE, code.OK, code.OK, code.OK, code.OK, code.STATE, code.HELD, code.STATE, code.STATE,
        code.OK, code.FREED, code.MISSING, code.OK,
    ]  # fmt: skip
    assert (answers[10].state, answers[11].state, left) == (DRAINING, ABSENT, 1)


def test_readers_are_counted_to_63() -> None:
    answers, _, _ = run([ask("produce"), *[ask("read")] * 64, *[ask("done")] * 64])
    codes = [a.code for a in answers]
    assert codes.count(KvCode.READERS) == 2
    assert codes[MAX_READERS + 1] == codes[-1] == KvCode.READERS


def test_a_rectangle_of_blocks_and_layers_fills_the_directory_evenly() -> None:
    for layers, blocks in [(4, 16), (8, 8), (1, 64), (2, 32), (16, 4)]:
        ids = [block << BLOCK_LOW | layer << 5 for layer in range(layers) for block in range(blocks)]
        assert len({set_of(kv_id, 6) for kv_id in ids}) == 64


def test_a_full_set_refuses_and_a_free_place_is_found_again() -> None:
    ids = [kv_id for kv_id in range(200) if set_of(kv_id, 2) == 3][:5]
    asked = [*(ask("recv", kv_id) for kv_id in ids), ask("arrive", ids[1]), ask("drain", ids[1]), ask("free", ids[1])]
    answers, _, left = run([*asked, ask("recv", ids[4])])
    assert [a.code for a in answers] == [KvCode.OK] * 4 + [KvCode.FULL] + [KvCode.OK] * 4
    assert left == 4


def test_serving_states_are_the_readable_ones_but_draining() -> None:
    assert {STATE_NAMES[state] for state in SERVING} == {"valid", "valid (stream)"}
