"""The packetizer and the dispatcher against plain Python, with random stalls."""

import random
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from gateware import Bench, as_beats, as_fields, beat
from mcf.rtl.golden.packet import Packet, cut, header_ok
from mcf.rtl.golden.packetizer import join
from mcf.rtl.hdl.dispatch import Dispatch
from mcf.rtl.hdl.packetizer import Packetizer
from mcf.schedule.wire import pack

SMALL = dict(depth=16, metas=4, max_beats=6)


class Pulses:
    """How often a signal was high."""

    def __init__(self, signal: Any) -> None:
        self.signal, self.count = signal, 0

    def __call__(self, ctx: Any, cycle: int) -> None:
        self.count += ctx.get(self.signal)


def packetized(
    metas: list[int], runs: list[list[int]], *, cycles: int, sizes: dict[str, int] = SMALL, **stalls: Any
) -> tuple[Bench, int]:
    dut = Packetizer(**sizes)
    beats = [{"data": word, "last": i == len(run) - 1} for run in runs for i, word in enumerate(run)]
    dropped = Pulses(dut.dropped)
    bench = Bench(
        dut,
        sources={"meta": (dut.meta, [as_fields(meta) for meta in metas]), "payload": (dut.payload, beats)},
        sinks={"packets": (dut.packets, beat)},
        watch=[dropped],
        **stalls,
    )
    bench.run(cycles)
    return bench, dropped.count


def numbered(count: int, lengths: list[int]) -> list[int]:
    """Metas of these lengths with a wrong CRC: the packetizer has to fill it in."""
    return [pack(dict(block=n, len=lengths[n])) ^ 1 << 120 for n in range(count)]


@pytest.mark.parametrize(("pause", "stall"), [(0.0, 0.0), (0.4, 0.1), (0.1, 0.5)])
def test_packets_are_metas_and_runs_joined_in_order(pause: float, stall: float) -> None:
    rng = random.Random(3)
    lengths = [rng.choice((0, 0, 1, 2, 6)) for _ in range(60)]
    metas, runs = numbered(60, lengths), [[rng.getrandbits(128) for _ in range(n)] for n in lengths if n]
    bench, dropped = packetized(metas, runs, cycles=900, pause=pause, stall=stall)
    want, _ = join(metas, runs, max_beats=6)
    assert cut(bench.items("packets")) == want
    assert all(header_ok(packet.header) for packet in want)
    assert len(want) == 60
    assert dropped == 0


def test_runs_of_another_length_are_dropped_with_their_meta() -> None:
    rng = random.Random(4)
    lengths = [rng.choice((0, 1, 3, 6, 7)) for _ in range(80)]
    sizes = [rng.choice((n, n, n, 1, 5, 6, 7, 8, 40)) for n in lengths if n]
    metas, runs = numbered(80, lengths), [[rng.getrandbits(128) for _ in range(n)] for n in sizes]
    bench, dropped = packetized(metas, runs, cycles=1500, pause=0.1, stall=0.1)
    want, num_bad = join(metas, runs, max_beats=6)
    assert cut(bench.items("packets")) == want
    assert dropped == num_bad > 10


def test_a_header_waits_for_all_of_its_payload() -> None:
    metas, run = numbered(1, [6]), list(range(6))
    bench, _ = packetized(metas, [run], cycles=60, pause=0.6, seed=9)
    complete = bench.passed["payload"][-1][0]
    cycles = [cycle for cycle, _ in bench.passed["packets"]]
    assert cycles[0] > complete
    assert cycles == list(range(cycles[0], cycles[0] + 7))


def test_a_packet_takes_a_cycle_per_beat_and_one_for_its_header() -> None:
    lengths = [17] * 8 + [64] * 2 + [0] * 20
    metas, runs = numbered(len(lengths), lengths), [[1] * n for n in lengths if n]
    sizes = dict(depth=1024, metas=64, max_beats=64)
    stalled = 200  # by then all metas and runs wait in the queues
    bench, _ = packetized(
        metas, runs, cycles=600, sizes=sizes, stall=lambda name, cycle: 1.0 if cycle < stalled else 0.0
    )
    cycles = [cycle for cycle, _ in bench.passed["packets"]]
    assert len(bench.passed["payload"]) == 8 * 17 + 2 * 64
    assert cycles == list(range(stalled, stalled + sum(lengths) + len(lengths)))


def test_full_queues_hold_up_their_source_and_lose_nothing() -> None:
    metas, runs = numbered(20, [6] * 20), [[n] * 6 for n in range(20)]
    bench, dropped = packetized(metas, runs, cycles=500, stall=lambda name, cycle: 1.0 if cycle < 100 else 0.0)
    early = [cycle for cycle, _ in bench.passed["payload"] if cycle < 100]
    assert 12 <= len(early) < 6 * 20
    assert cut(bench.items("packets")) == join(metas, runs, max_beats=6)[0]
    assert dropped == 0


UNITS = {"kv": (0, 3, 4, 5, 7), "control": (1, 2, 8, 9, 10, 11)}


def unit_of(packet: Packet) -> str:
    if packet.field("op") == 6:
        return "reduce" if packet.field("reduce_op") else "kv"
    return next((unit for unit, ops in UNITS.items() if packet.field("op") in ops), "dropped")


@pytest.mark.parametrize(("pause", "stall"), [(0.0, 0.0), (0.3, 0.3)])
def test_packets_go_to_the_unit_of_their_operation(pause: float, stall: float) -> None:
    rng = random.Random(8)
    packets = [
        Packet.of(dict(op=rng.randrange(12), reduce_op=rng.randrange(4), block=n), range(rng.randrange(4)))
        for n in range(150)
    ]
    packets = [Packet(header=p.header | 12 << 6, payload=p.payload) if rng.random() < 0.1 else p for p in packets]
    dut = Dispatch()
    dropped = Pulses(dut.dropped)
    bench = Bench(
        dut,
        sources={"packets": (dut.packets, as_beats(packets))},
        sinks={name: (getattr(dut, name), beat) for name in ("kv", "reduce", "control")},
        watch=[dropped],
        pause=pause,
        stall=stall,
    ).run(900)
    for name in ("kv", "reduce", "control"):
        assert cut(bench.items(name)) == [p for p in packets if unit_of(p) == name]
    assert dropped.count == sum(unit_of(p) == "dropped" for p in packets) > 5
    if not pause:
        came = [cycle for cycle, _ in bench.passed["packets"]]
        left = sorted(cycle for name in ("kv", "reduce", "control") for cycle, _ in bench.passed[name])
        assert came == list(range(len(came)))
        assert set(left) <= {cycle + 1 for cycle in came}
