"""A merge depends on the order in which states arrive: all orders are tried, and nothing else is let through."""

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest

from mcf.errors import RunError
from mcf.rtl.golden.reduce import possible_merges
from mcf.rtl.golden.state import BlockState, merge
from mcf.rtl.merge_check import MOST_STATES, MergeCheck
from mcf.rtl.merges import Merge
from mcf.schedule.steps import ATTEND


def random_state(rng: np.random.Generator) -> BlockState:
    sum_ = rng.integers(1 << 14, 1 << 15)
    out = rng.integers(-sum_, sum_ + 1, 128)
    return BlockState(exponent=np.array(rng.integers(-5, 5)), sum_=np.array(sum_), out=out, count=np.array(1))


def states(count: int) -> list[BlockState]:
    rng = np.random.default_rng(count)
    return [random_state(rng) for _ in range(count)]


def check_of(parts: list[BlockState]) -> MergeCheck:
    """A check for a merge on node 0 of rows 0, 1, ... of which each part is one's state."""
    rows = [SimpleNamespace(kind=ATTEND, node=0)] * len(parts)
    low = SimpleNamespace(is_whole=True, merges={0: Merge(row=99, inputs=tuple(range(len(parts))))})
    program = SimpleNamespace(rows=rows, layer=lambda tick: tick)
    holding = SimpleNamespace(record=lambda row, tick, head: parts[row])
    return MergeCheck(program, low, lambda _: holding)


def test_every_order_is_among_the_possible_merges_and_some_differ() -> None:
    parts = states(4)
    found = {s.out.tobytes() for s in possible_merges([[part] for part in parts])}
    assert found == {merge(order).out.tobytes() for order in permutations(parts)}
    assert len(found) > 1


def test_a_result_of_any_order_passes_and_one_with_another_bit_does_not() -> None:
    parts = states(3)
    check = check_of(parts)
    for head, order in enumerate(permutations(parts)):
        check.check(0, 0, head, merge(order))
    assert check.num_exact == 6
    good = merge(parts)
    out = good.out.copy()
    out[7] += 1
    wrong = BlockState(exponent=good.exponent, sum_=good.sum_, out=out, count=good.count)
    with pytest.raises(RunError, match="node 0 merged head 0 of layer 0 to another state than the golden model"):
        check.check(0, 0, 0, wrong)


def test_merges_of_many_states_are_not_tried() -> None:
    parts = states(MOST_STATES + 1)
    check = check_of(parts)
    check.check(0, 0, 0, merge(parts))
    assert check.num_exact == 0
