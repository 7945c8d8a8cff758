"""The multipliers against numpy: random and worst numbers, short groups, stalls, and how many cycles it takes."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from gateware import Bench
from mcf.rtl.golden.gemv import LARGEST_SUM, ROWS, partials, wide_beat
from mcf.rtl.hdl.gemv import Gemv

Group = tuple[np.ndarray, np.ndarray]


def random_group(rng: np.random.Generator, rows: int, columns: int) -> Group:
    return rng.integers(-8, 8, (rows, columns)), rng.integers(-2048, 2048, columns)


def worst_groups(rows: int) -> list[Group]:
    """The largest and the smallest sums, each beside each other's and beside 0, -1 and 1 in the other field."""
    patterns = [(-8, -8), (7, 7), (-8, 7), (7, -8), (-8, 0), (0, -8), (7, 0), (0, 7)]
    weights = np.tile(np.array(patterns).reshape(-1, 1), (-(-rows // 16), 128))[:rows]
    groups = [(weights, np.full(128, activation)) for activation in (-2048, 2047, -2047)]
    ones = np.zeros((rows, 128), dtype=np.int64)
    ones[:, 0] = np.resize([1, -1, -1, 1, 0, -1, -1, 0], rows)
    return [*groups, (ones, np.eye(128, dtype=np.int64)[0]), (ones, -np.eye(128, dtype=np.int64)[0])]


def uneven_groups(rows: int) -> list[Group]:
    """Activations that need all 18 bits, at the bound on their sum."""
    activations = np.array([LARGEST_SUM // 2, -(LARGEST_SUM // 2), 1])
    weights = np.resize([[-8, 7, -8], [7, -8, 7], [-8, -8, 0], [0, 1, -1], [7, 7, 7]], (rows, 3))
    return [(weights, activations), (-weights.clip(-7), activations), (weights, -activations)]


def run(dut: Gemv, groups: list[Group], **stalls: Any) -> Bench:
    beats = [
        {"data": wide_beat(weights[:, column]), "last": int(column == weights.shape[1] - 1)}
        for weights, _ in groups
        for column in range(weights.shape[1])
    ]
    activations = [int(number) for _, numbers in groups for number in numbers]
    bench = Bench(
        dut,
        sources={"weights": (dut.weights, beats), "activations": (dut.activations, activations)},
        sinks={"partials": (dut.partials, lambda payload: (payload.row, payload.value, payload.last))},
        **stalls,
    )
    wanted = len(groups) * dut.rows
    bench.run(20 * (len(beats) + wanted) + 50, until=lambda b: len(b.passed["partials"]) == wanted)
    return bench


def expected(groups: list[Group]) -> list[tuple[int, int, int]]:
    return [
        (row, int(value), int(row == len(weights) - 1))
        for weights, numbers in groups
        for row, value in enumerate(partials(weights, numbers))
    ]


@pytest.mark.parametrize(("seed", "pause", "stall"), [(1, 0.0, 0.0), (2, 0.3, 0.0), (3, 0.0, 0.5), (4, 0.2, 0.2)])
def test_random_groups_of_any_length(seed: int, pause: float, stall: float) -> None:
    rng = np.random.default_rng(seed)
    groups = [random_group(rng, 8, int(columns)) for columns in (1, 8, 2, 3, 1, 9, 40, 7, 8, 8, 1)]
    assert run(Gemv(8), groups, seed=seed, pause=pause, stall=stall).items("partials") == expected(groups)


def test_the_largest_and_smallest_sums_do_not_touch_their_neighbours() -> None:
    groups = [*worst_groups(16), *uneven_groups(16)]
    sums = [value for _, value, _ in expected(groups)]
    assert (max(sums), min(sums)) == (1 << 21, -8 * 2047 * 128)
    assert run(Gemv(16), groups).items("partials") == expected(groups)


def test_full_size_takes_a_wide_beat_in_each_cycle() -> None:
    rng = np.random.default_rng(5)
    groups = [random_group(rng, ROWS, 128) for _ in range(3)]
    bench = run(Gemv(), groups)
    assert bench.items("partials") == expected(groups)
    times = [time for time, _ in bench.passed["weights"]]
    assert times[-1] - times[0] == 3 * 128 - 1  # 128 rows times 128 columns in 128 cycles, group after group
    rows = [time for time, _ in bench.passed["partials"]]
    assert rows[-1] - rows[0] == 3 * 128 - 1
    assert rows[0] - times[127] == 8  # from a group's last beat to its first row


def test_a_short_group_waits_for_the_rows_of_the_one_before() -> None:
    rng = np.random.default_rng(6)
    bench = run(Gemv(32), groups := [random_group(rng, 32, 4) for _ in range(4)])
    assert bench.items("partials") == expected(groups)
    rows = [time for time, _ in bench.passed["partials"]]
    assert rows[-1] - rows[0] == 4 * 32 - 1  # the rows, not the multipliers, are what it waits for
