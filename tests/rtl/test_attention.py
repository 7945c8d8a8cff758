"""A shard's attention in integers: how exact against float64 on the same numbers, and what is refused."""

from itertools import pairwise

import numpy as np
import pytest

from mcf.attn.state import attend, finish
from mcf.errors import UserError
from mcf.rtl.golden.attention import MAX_TOKENS, Queries, Shard, attend_shard
from mcf.rtl.golden.state import EMPTY_EXPONENT, LARGEST, MANTISSA_BITS, BlockState, decode, from_beats, merge, to_beats
from mcf.rtl.quantise import VALUE_UNIT, key_power, quantise_queries, quantise_shard, value_scale

HEADS = 6
KINDS = ({"sigma": 1.0}, {"sigma": 4.0}, {"sigma": 1.0, "head_dim": 64}, {"kind": "tail"}, {"kind": "outlier"})


class Case:
    """Random keys, values and queries whose scores spread as asked, quantised, and float64 attention on the same."""

    def __init__(self, seed: int, tokens: int, head_dim: int = 128, *, sigma: float = 1.0, kind: str = "") -> None:
        rng = np.random.default_rng(seed)
        k, v = rng.normal(size=(tokens, head_dim)), rng.normal(size=(tokens, head_dim))
        q = rng.normal(0, sigma, (HEADS, head_dim))
        if kind == "tail":  # long tails of scores
            k *= rng.standard_t(3, (tokens, 1))
        if kind == "peak":  # one key stands 12 powers of two above all others
            k[:] = 0.05 * k
            k[tokens // 2] = q.mean(0) * 12 * head_dim**0.5 / (q @ q.mean(0)).mean() / np.log2(np.e)
        if kind == "outlier":  # one value is 30 times as large
            v[tokens // 3] *= 30
            k[tokens // 3] = -k[tokens // 3]
        self.power, self.v_scale, self.scale = key_power(k), value_scale(v), head_dim**-0.5
        self.shard = quantise_shard(k, v, power=self.power, v_scale=self.v_scale)
        self.queries = quantise_queries(q, power=self.power, scale=self.scale)
        self.q = self.queries.q * (np.abs(q).max(-1) / 2047)[:, None]

    def part(self, at: slice) -> Shard:
        return Shard(**{name: values[at] for name, values in vars(self.shard).items()})

    def exactly(self) -> np.ndarray:
        shard = self.shard
        k = shard.k * shard.k_scale[:, None] * 2.0**-self.power
        v = shard.v * shard.v_scale[:, None] * self.v_scale / (VALUE_UNIT << 16)
        tokens = np.arange(len(k))
        return finish(attend(self.q[None], k[:, None], v[:, None], tokens[-1:], tokens, self.scale))[0]

    def error(self, states: list[BlockState], units: float = 1.1) -> float:
        """The largest error over the largest output, worst head; so many units of the record's last place are free."""
        got, expected = self.outputs(states), self.exactly()
        beyond = np.abs(got - expected).max(-1) - units * self.v_scale * 2.0**-MANTISSA_BITS
        return float((beyond.clip(0) / np.abs(expected).max(-1)).max())

    def attend(self, *cuts: int) -> list[BlockState]:
        """The state of each head: one shard, or several that meet."""
        ends = [0, *cuts, len(self.shard.k)]
        parts = [attend_shard(self.part(slice(*at)), self.queries) for at in pairwise(ends)]
        return [merge(states) for states in zip(*parts, strict=True)] if cuts else parts[0]

    def outputs(self, states: list[BlockState]) -> np.ndarray:
        dim = self.q.shape[1]
        parts = [decode(_row(state), self.v_scale) for state in states]
        return np.stack([finish(part)[0, 0, :dim] for part in parts])


def _row(state: BlockState) -> BlockState:
    one = {name: np.reshape(values, (1, 1)) for name, values in vars(state).items() if name != "out"}
    return BlockState(**one, out=np.reshape(state.out, (1, 1, -1)))


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("tokens", [1, 128, 130, 1000, pytest.param(4096, marks=pytest.mark.full)])
def test_a_shard_is_within_1e_3_of_float64_and_the_rounding_of_its_record(tokens: int, kind: dict[str, float]) -> None:
    for seed in range(2):
        case = Case(seed, tokens, **kind)
        assert case.error(case.attend()) < 1e-3


@pytest.mark.parametrize("tokens", [128, 1000])
def test_one_peak_over_many_equals_is_within_2e_3(tokens: int) -> None:
    # all others round the same way, in their score and in p: twelve powers of two below the peak, 8 units of p
    case = Case(3, tokens, kind="peak")
    assert case.error(case.attend()) < 2e-3


@pytest.mark.parametrize("num_shards", [2, 5, 16])
def test_shards_that_meet_add_their_records_roundings(num_shards: int) -> None:
    for kind in ({"sigma": 1.0}, {"sigma": 4.0, "head_dim": 64}):
        case = Case(num_shards, 640, **kind)
        cuts = [640 * i // num_shards for i in range(1, num_shards)]
        assert case.error(case.attend(*cuts), units=2.5) < 1e-3


def test_where_outputs_do_not_shrink_all_of_it_is_below_1e_3_of_the_largest() -> None:
    case = Case(7, 256, sigma=4.0)
    assert case.error(case.attend(), units=0) < 1e-3


def test_a_record_is_normalised_and_bounded_and_comes_back_from_its_17_beats() -> None:
    for state in Case(9, 300, sigma=4.0).attend():
        assert (1 << 14) <= state.sum_ <= LARGEST
        assert (np.abs(state.out) <= state.sum_).all()
        beats = to_beats(state, 3, 16)
        back, child = from_beats(beats, 128)
        assert (len(beats), child, int(back.exponent)) == (17, 3, int(state.exponent))
        np.testing.assert_array_equal(back.out, state.out)


def test_a_value_of_minus_8_everywhere_is_minus_the_sum() -> None:
    full = np.full(77, 65535)
    shard = Shard(k=np.full((77, 64), -8), v=np.full((77, 64), -8), k_scale=full, v_scale=full)
    most = Queries(q=np.array([[-2047] * 64, [2047] * 64]), scale=np.array([65535] * 2), shift=np.array([0, 0]))
    for state in attend_shard(shard, most):  # scores saturate; 77 equal activations round alike
        assert (np.abs(state.out[:64] + state.sum_) <= state.sum_ / 2000).all()
        assert (state.out[64:] == 0).all()


def test_an_empty_shard_gives_the_empty_state() -> None:
    case = Case(1, 1)
    for state in attend_shard(case.part(slice(0, 0)), case.queries):
        assert (int(state.exponent), int(state.sum_), int(state.count)) == (EMPTY_EXPONENT, 0, 1)


def test_what_does_not_fit_is_refused_in_one_line() -> None:
    case = Case(1, 3)
    one = Queries(q=np.zeros((1, 1), np.int64), **_ones("scale", "shift"))
    with pytest.raises(UserError, match=f"got {MAX_TOKENS + 1} tokens of one shard: expected at most {MAX_TOKENS}"):
        attend_shard(_shard(MAX_TOKENS + 1, 1), one)
    with pytest.raises(UserError, match="got heads of 129: expected at most 128"):
        attend_shard(_shard(1, 129), Queries(q=np.zeros((1, 129), np.int64), **_ones("scale", "shift")))
    with pytest.raises(UserError, match="got shift from 32 to 32: expected 5 bits"):
        attend_shard(case.shard, Queries(q=case.queries.q, scale=case.queries.scale, shift=np.full(HEADS, 32)))
    with pytest.raises(UserError, match=r"magnitudes sum up to 262144: expected less than 2\^18"):
        attend_shard(case.shard, Queries(q=np.full((1, 128), 2048), **_ones("scale", "shift")))
    with pytest.raises(UserError, match="got a value beyond v_scale = 0.001"):
        quantise_shard(np.ones((1, 4)), np.ones((1, 4)), power=3, v_scale=0.001)
    with pytest.raises(UserError, match=r"got a key beyond 2\^-14 \* 7"):
        quantise_shard(np.ones((1, 4)), np.ones((1, 4)), power=30, v_scale=9.0)
    with pytest.raises(UserError, match="got a query whose scores are"):
        quantise_queries(np.full((1, 4), 1e9), power=0, scale=1.0)


def _ones(*names: str) -> dict[str, np.ndarray]:
    return dict.fromkeys(names, np.ones(1, np.int64))


def _shard(tokens: int, head_dim: int) -> Shard:
    zeros, scales = np.zeros((tokens, head_dim), np.int64), np.zeros(tokens, np.int64)
    return Shard(k=zeros, v=zeros, k_scale=scales, v_scale=scales)
