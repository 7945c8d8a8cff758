"""The link layer over a lossy channel: hardware against hardware, and hardware against its golden model."""

import random
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from amaranth.hdl import Module, Value

from mcf.rtl.golden.credit_link import LinkEnd, lossy, pack_word, seq_bits, unpack_word, word_fields
from mcf.rtl.hdl.credit_link import CreditLink
from rtl_streams import simulate, sink, source, tally

DEPTH, TIMEOUT = 8, 24
NUM_BITS = sum(word_fields(DEPTH).values())
Wire = Callable[[int], list[int]]
FAULTS = {
    "clean": dict[str, float](),
    "doubles": {"double": 0.2},
    "all": {"lose": 0.05, "flip": 0.05, "double": 0.1},
}


def slow(fault: str) -> Any:
    """Amaranth's simulator takes seconds to begin, for two CRCs."""
    return pytest.param(fault, marks=pytest.mark.full)


def wire(seed: int, faults: dict[str, float]) -> Wire:
    return lossy(random.Random(seed), num_bits=NUM_BITS, **faults)


def beats(seed: int, count: int) -> list[dict[str, int]]:
    rng = random.Random(seed)
    return [{"data": rng.getrandbits(128), "last": rng.getrandbits(1)} for _ in range(count)]


def as_int(beat: Any) -> int:
    data, last = (beat["data"], beat["last"]) if isinstance(beat, dict) else (beat.data, beat.last)
    return data | last << 128


def carry(tx: Any, rx: Any, channel: Wire) -> Callable[[Any], Any]:
    """From one end's `tx` to the other's `rx`, a word a cycle."""

    async def bench(ctx: Any) -> None:
        queue: list[int] = []
        while True:
            _, _, valid, word = await ctx.tick().sample(tx.valid, Value.cast(tx.payload))
            queue += channel(word)[: 2 if len(queue) < 3 else 1] if valid else []
            ctx.set(rx.valid, bool(queue))
            if queue:
                ctx.set(Value.cast(rx.payload), queue.pop(0))

    return bench


@pytest.mark.parametrize("fault", [slow("clean"), slow("doubles"), "all"])
def test_beats_come_out_once_and_in_order_both_ways(fault: str) -> None:
    ends = [CreditLink(depth=DEPTH, timeout=TIMEOUT) for _ in range(2)]
    sent = [beats(1, 70), beats(2, 50)]
    got: list[list[Any]] = [[], []]
    counts: list[dict[str, int]] = [{}, {}]
    design = Module()
    design.submodules.a, design.submodules.b = ends
    silent = 0

    async def settle(ctx: Any) -> None:
        nonlocal silent
        while [len(x) for x in got] != [len(x) for x in sent[::-1]]:
            await ctx.tick()
        while silent < 3 * TIMEOUT:  # everything is acknowledged at last, and then nothing is said
            *_, a, b = await ctx.tick().sample(ends[0].tx.valid, ends[1].tx.valid)
            silent = 0 if a or b else silent + 1

    background = [
        carry(ends[0].tx, ends[1].rx, wire(3, FAULTS[fault])),
        carry(ends[1].tx, ends[0].rx, wire(4, FAULTS[fault])),
    ]
    for i in range(2):
        background.append(source(ends[i].packets, sent[i], stalls=0.2, seed=i))
        background.append(sink(ends[i].delivered, got[i], stalls=0.2, seed=5 + i))
        background.append(tally({"bad": ends[i].bad, "resent": ends[i].resent}, counts[i]))
    simulate(design, settle, background=background)
    assert [list(map(as_int, x)) for x in got] == [list(map(as_int, x)) for x in sent[::-1]]
    assert (sum(c["bad"] for c in counts) > 0) == (fault != "clean")
    assert (sum(c["resent"] for c in counts) > 0) == (fault not in ("clean", "doubles"))


@pytest.mark.parametrize("fault", [slow("clean"), "all"])
def test_hardware_and_model_understand_each_other(fault: str) -> None:
    hardware, model = CreditLink(depth=DEPTH, timeout=TIMEOUT), LinkEnd(depth=DEPTH, timeout=TIMEOUT)
    out, back = beats(7, 60), beats(8, 60)
    got_hardware: list[Any] = []
    got_model: list[int] = []
    there, here = wire(9, FAULTS[fault]), wire(10, FAULTS[fault])
    rng = random.Random(11)

    async def other_end(ctx: Any) -> None:
        waiting = [as_int(beat) for beat in back]
        queue: list[int] = []
        while len(got_hardware) < len(back) or len(got_model) < len(out):
            _, _, valid, word = await ctx.tick().sample(hardware.tx.valid, Value.cast(hardware.tx.payload))
            for arrived in there(word) if valid else []:
                model.receive(arrived)
            if waiting and model.offer(waiting[0]):
                waiting.pop(0)
            if rng.random() < 0.7 and (beat := model.take()) is not None:
                got_model.append(beat)
            model.tick()
            said = None if queue else model.transmit()
            queue += [] if said is None else here(said)
            ctx.set(hardware.rx.valid, bool(queue))
            if queue:
                ctx.set(Value.cast(hardware.rx.payload), queue.pop(0))

    simulate(
        hardware,
        other_end,
        background=[source(hardware.packets, out, stalls=0.1), sink(hardware.delivered, got_hardware, stalls=0.3)],
    )
    assert got_model == [as_int(beat) for beat in out]
    assert [as_int(beat) for beat in got_hardware] == [as_int(beat) for beat in back]
    assert (model.bad > 0) == (fault != "clean")


@pytest.mark.full
def test_line_rate_without_faults() -> None:
    ends = [CreditLink() for _ in range(2)]
    design = Module()
    design.submodules.a, design.submodules.b = ends
    got: list[Any] = []
    sent = beats(1, 120)
    cycles = 0

    async def bench(ctx: Any) -> None:
        nonlocal cycles
        while len(got) < len(sent):
            await ctx.tick()
            cycles += 1

    def direct(word: int) -> list[int]:
        return [word]

    simulate(
        design,
        bench,
        background=[
            carry(ends[0].tx, ends[1].rx, direct),
            carry(ends[1].tx, ends[0].rx, direct),
            source(ends[0].packets, sent),
            sink(ends[1].delivered, got),
        ],
    )
    assert len(sent) + 3 <= cycles <= len(sent) + 8


@pytest.mark.full
def test_a_stalled_receiver_stops_the_sender_and_nothing_is_lost() -> None:
    ends = [CreditLink(depth=4, timeout=TIMEOUT) for _ in range(2)]
    design = Module()
    design.submodules.a, design.submodules.b = ends
    got: list[Any] = []
    sent = beats(3, 30)

    async def bench(ctx: Any) -> None:
        await ctx.tick().repeat(200)
        assert not ctx.get(ends[0].packets.ready)  # 4 there and 4 here
        await sink(ends[1].delivered, got)(ctx)

    async def until(ctx: Any) -> None:
        while len(got) < len(sent):
            await ctx.tick()

    lost = wire(12, {})
    num_bits = sum(word_fields(4).values())
    hurt = lossy(random.Random(13), lose=0.2, flip=0.1, num_bits=num_bits)
    simulate(
        design,
        until,
        background=[
            bench,
            carry(ends[0].tx, ends[1].rx, lost),
            carry(ends[1].tx, ends[0].rx, hurt),  # news of places are lost too
            source(ends[0].packets, sent),
        ],
    )
    assert list(map(as_int, got)) == list(map(as_int, sent))


def test_a_word_comes_back_and_any_flipped_bit_is_seen() -> None:
    rng = random.Random(14)
    widths = {name: width for name, width in word_fields(DEPTH).items() if name != "crc"}
    values = {name: rng.getrandbits(width) for name, width in widths.items()}
    word = pack_word(DEPTH, values)
    back = unpack_word(DEPTH, word)
    assert back is not None
    assert {name: back[name] for name in values} == values
    assert all(unpack_word(DEPTH, word ^ 1 << bit) is None for bit in range(NUM_BITS))
    assert seq_bits(DEPTH) == 5
