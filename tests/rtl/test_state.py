"""States in block floating point: how exact, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest

from mcf.attn.state import PartialState, attend, empty, finish
from mcf.attn.state import merge as merge_exactly
from mcf.errors import UserError
from mcf.rtl.golden.state import (
    EMPTY_EXPONENT,
    LARGEST,
    BlockState,
    decode,
    encode,
    from_beats,
    merge,
    num_payload_beats,
    to_beats,
)
from mcf.schedule.wire import ReduceOp

HEADS, HEAD_DIM, TOKENS = 8, 128, 32


def shards(num_shards: int, sigma: float, seed: int) -> list[PartialState]:
    """Attention of one query row over TOKENS keys in each shard, logits N(0, sigma), values in [-1, 1)."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, sigma, (num_shards, TOKENS, HEADS))
    values = rng.uniform(-1, 1, (num_shards, TOKENS, HEADS, HEAD_DIM))
    tops = scores.max(1)
    weights = np.exp(scores - tops[:, None])
    return [
        PartialState(
            max_=tops[i][None], sum_=weights[i].sum(0)[None], out=(weights[i][..., None] * values[i]).sum(0)[None]
        )
        for i in range(num_shards)
    ]


def flat(states: list[BlockState]) -> BlockState:
    return merge(states)


def tree(states: list[BlockState]) -> BlockState:
    """Fan-in 4, as a mesh's reduction tree has."""
    while len(states) > 1:
        states = [merge(states[i : i + 4]) for i in range(0, len(states), 4)]
    return states[0]


def error(states: list[PartialState], how: Callable[[list[BlockState]], BlockState], v_scale: float = 1.0) -> float:
    """The largest error over the largest output, per head."""
    expected = finish(merge_exactly(states))
    got = finish(decode(how([encode(state, v_scale) for state in states]), v_scale))
    return float((np.abs(got - expected).max(-1) / np.abs(expected).max(-1)).max())


@pytest.mark.parametrize("how", [flat, tree])
@pytest.mark.parametrize("num_shards", [2, 4, 8, 16])
def test_merged_attention_is_within_5e_4_of_float64(num_shards: int, how: Callable[..., BlockState]) -> None:
    assert max(error(shards(num_shards, 1.0, seed), how) for seed in range(6)) < 5e-4
    assert max(error(shards(num_shards, 4.0, seed), how) for seed in range(6)) < 2.5e-4


def test_an_error_is_half_a_unit_per_rounding() -> None:
    # what is asserted above is relative to outputs that shrink; against |value| <= 1 the bound is arithmetic: half a
    # unit of 2^-14 for the final rounding of output and sum each, and less for what goes in
    for seed in range(4):
        states = shards(16, 1.0, seed)
        merged = decode(flat([encode(state, 1.0) for state in states]), 1.0)
        assert np.abs(finish(merged) - finish(merge_exactly(states))).max() < 1.25 * 2.0**-14


def test_encoding_is_exact_to_half_a_unit_at_any_scale_and_reference() -> None:
    rng = np.random.default_rng(7)
    q, k = rng.normal(0, 30, (3, 4, 16)), rng.normal(0, 3, (20, 2, 16))
    v = rng.normal(0, 5, (20, 2, 16))
    state = attend(q, k, v, np.full(3, 99), np.arange(20), 1.0)
    v_scale = float(np.abs(v).max())
    coded = encode(state, v_scale)
    assert (coded.sum_ >= 1 << 14).all()
    assert (coded.sum_ <= LARGEST).all()
    assert (np.abs(coded.out) <= coded.sum_[..., None]).all()
    np.testing.assert_allclose(finish(decode(coded, v_scale)), finish(state), rtol=0, atol=v_scale * 2.0**-14)


def test_empty_states_are_neutral() -> None:
    nothing = encode(empty(1, HEADS, HEAD_DIM), 1.0)
    assert (nothing.exponent == EMPTY_EXPONENT).all()
    something = encode(shards(1, 1.0, 3)[0], 1.0)
    for states in ([nothing, something], [something, nothing], [nothing, something, nothing]):
        merged = merge(states)
        np.testing.assert_array_equal(merged.out, something.out)
        np.testing.assert_array_equal(merged.sum_, something.sum_)
        np.testing.assert_array_equal(merged.exponent, something.exponent)
        assert (merged.count == len(states)).all()
    assert decode(merge([nothing, nothing]), 1.0).is_empty.all()


def test_sums_align_and_saturate_and_maxima_compare() -> None:
    one = BlockState(exponent=np.int64(0), sum_=np.int64(3), out=np.array([30000, -5, 7]), count=np.int64(1))
    two = BlockState(exponent=np.int64(1), sum_=np.int64(4), out=np.array([30000, -9, 2]), count=np.int64(1))
    total, top = merge([one, two], ReduceOp.SUM), merge([one, two], ReduceOp.MAX)
    assert (int(total.exponent), int(total.sum_), total.out.tolist()) == (1, 6, [LARGEST, -11, 6])
    assert (int(top.exponent), int(top.sum_), top.out.tolist()) == (1, 4, [30000, -5, 7])


def test_a_record_comes_back_from_its_beats() -> None:
    coded = encode(shards(1, 1.0, 5)[0], 1.0)
    one = BlockState(exponent=coded.exponent[0, 2], sum_=coded.sum_[0, 2], out=coded.out[0, 2], count=coded.count[0, 2])
    beats = to_beats(one, 11, 20)
    assert (len(beats), num_payload_beats(HEAD_DIM)) == (21, 17)
    back, child = from_beats(beats, HEAD_DIM)
    assert child == 11
    assert (int(back.exponent), int(back.sum_)) == (int(one.exponent), int(one.sum_))
    np.testing.assert_array_equal(back.out, one.out)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    good = shards(1, 1.0, 6)[0]
    with pytest.raises(UserError, match=r"got a value of 2: expected at most v_scale = 1"):
        encode(PartialState(max_=good.max_, sum_=np.ones_like(good.sum_), out=np.full_like(good.out, 2.0)), 1.0)
    with pytest.raises(UserError, match="not finite"):
        encode(PartialState(max_=good.max_ * np.nan, sum_=good.sum_, out=good.out), 1.0)
    with pytest.raises(UserError, match="expected less than 16384"):
        encode(PartialState(max_=good.max_ + 2e4, sum_=good.sum_, out=good.out), 1.0)
    with pytest.raises(UserError, match="got 17 states for one slot: expected 1 to 16"):
        merge([encode(good, 1.0)] * 17)
