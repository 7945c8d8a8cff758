"""Scales, the unit that multiplies by them, and the tile buffer, against numpy, with stalls."""

import random

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from gateware import Bench
from mcf.rtl.golden.scale_acc import scaled_rows
from mcf.rtl.hdl.scale_acc import ScaleAcc
from mcf.rtl.hdl.scales import Scales
from mcf.rtl.hdl.tiles import TileBuffer

ROWS = 8
STALLS = [(1, 0.0, 0.0), (2, 0.4, 0.0), (3, 0.0, 0.5), (4, 0.2, 0.3)]


def matrices(rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Partials and scales [groups, ROWS] and a shift: random, and at the ends of their ranges."""
    found = []
    for groups in (1, 2, 5, 1, 3):
        partials = rng.integers(-(1 << 21) + 1, (1 << 21) + 1, (groups, ROWS))
        scales = rng.integers(0, 1 << 16, (groups, ROWS))
        found.append((partials, scales, int(rng.integers(0, 32))))
    edge = np.resize([-(1 << 21) + 1024, 1 << 21, -1, 1], (64, ROWS))
    full = np.full((64, ROWS), 0xFFFF)
    return [*found, *((edge, full, shift) for shift in (0, 12, 11, 31)), (edge[:1], np.ones((1, ROWS), int), 1)]


@pytest.mark.parametrize(("seed", "pause", "stall"), STALLS)
def test_rows_are_those_of_numpy(seed: int, pause: float, stall: float) -> None:
    given = matrices(np.random.default_rng(seed))
    dut = ScaleAcc(ROWS)
    partials = [
        {"row": row, "value": int(value), "last": row == ROWS - 1}
        for sums, _, _ in given
        for group in sums
        for row, value in enumerate(group)
    ]
    groups = [
        {"first": i == 0, "last": i == len(sums) - 1, "shift": shift if i == len(sums) - 1 else 31}
        for sums, _, shift in given
        for i in range(len(sums))
    ]
    scales = [int(scale) for _, numbers, _ in given for scale in numbers.flat]
    bench = Bench(
        dut,
        sources={
            "partials": (dut.partials, partials),
            "scales": (dut.scales, scales),
            "groups": (dut.groups, groups),
        },
        sinks={"rows": (dut.rows, lambda payload: (payload.row, payload.value, payload.last))},
        seed=seed,
        pause=pause,
        stall=stall,
    ).run(20 * len(partials), until=lambda b: len(b.passed["rows"]) == ROWS * len(given))
    wanted = [(row, int(value), int(row == ROWS - 1)) for one in given for row, value in enumerate(scaled_rows(*one))]
    assert bench.items("rows") == wanted
    assert {max(v for _, v, _ in wanted), min(v for _, v, _ in wanted)} == {(1 << 31) - 1, -(1 << 31)}
    if not pause and not stall:
        times = [time for time, _ in bench.passed["partials"]]
        assert times[-1] - times[0] == len(partials) - 1  # one per cycle


@pytest.mark.parametrize(("seed", "pause", "stall"), STALLS)
def test_scales_come_one_by_one(seed: int, pause: float, stall: float) -> None:
    rng, dut = random.Random(seed), Scales()
    beats = [rng.getrandbits(512) for _ in range(9)]
    wanted = [beat >> 16 * i & 0xFFFF for beat in beats for i in range(32)]
    bench = Bench(
        dut,
        sources={"wide": (dut.wide, beats)},
        sinks={"scales": (dut.scales, int)},
        seed=seed,
        pause=pause,
        stall=stall,
    ).run(20 * len(wanted), until=lambda b: len(b.passed["scales"]) == len(wanted))
    assert bench.items("scales") == wanted


@pytest.mark.parametrize(("seed", "pause", "stall"), STALLS)
def test_runs_are_read_as_often_as_asked_and_released(seed: int, pause: float, stall: float) -> None:
    rng, depth = random.Random(seed), 16
    dut = TileBuffer(width=24, depth=depth)
    tiles, runs, wanted, words = [rng.randrange(1, 9) for _ in range(20)], [], [], iter(range(1000))
    start, pending = 0, 0
    for beats in tiles:
        here = [next(words) for _ in range(beats)]
        times = rng.choice([1, 1, 2, 3])
        for time in range(times):
            is_kept = time < times - 1 or (pending == 0 and rng.random() < 0.3)
            release, pending = (0, pending) if is_kept else (pending + beats, 0)
            runs.append({"start": start % (2 * depth), "beats": beats, "release": release})
            wanted += [(word, int(i == beats - 1)) for i, word in enumerate(here)]
        pending = 0 if release else beats
        start += beats
    bench = Bench(
        dut,
        sources={"writes": (dut.writes, range(start)), "runs": (dut.runs, runs)},
        sinks={"reads": (dut.reads, lambda payload: (payload.data, payload.last))},
        seed=seed,
        pause=pause,
        stall=stall,
    ).run(30 * len(wanted), until=lambda b: len(b.passed["reads"]) == len(wanted))
    assert bench.items("reads") == wanted
    if not pause and not stall:
        times_read = [time for time, _ in bench.passed["reads"]]
        assert times_read[-1] - times_read[0] < 1.2 * len(wanted)
