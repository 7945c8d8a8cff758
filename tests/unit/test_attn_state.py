import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcf.attn import PartialState, attend, empty, finish, lse, merge

SCALE = 0.5
DELTAS = (0.0, 30.0, -30.0, 100.0, -100.0, 1000.0, -1000.0, -np.inf)


def dense(q, k, v, q_pos, k_pos, scale=SCALE):
    """Softmax attention in float64, one row and head at a time: the oracle."""
    num_rows, num_q_heads, _ = q.shape
    group = num_q_heads // k.shape[1]
    out = np.zeros(q.shape)
    sums = np.full((num_rows, num_q_heads), -np.inf)
    for t, h in itertools.product(range(num_rows), range(num_q_heads)):
        seen = np.flatnonzero(k_pos <= q_pos[t])
        if len(seen):
            scores = k[seen, h // group].astype(np.float64) @ q[t, h].astype(np.float64) * scale
            weights = np.exp(scores - scores.max())
            out[t, h] = weights @ v[seen, h // group].astype(np.float64) / weights.sum()
            sums[t, h] = scores.max() + np.log(weights.sum())
    return out, sums


def tensors(seed, num_rows, num_keys, num_q_heads=4, num_kv_heads=2, head_dim=3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = ((num_rows, num_q_heads, head_dim), *[(num_keys, num_kv_heads, head_dim)] * 2)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def shifted_states(deltas, dtype, rows=2, heads=2, dim=3, seed=0):
    """One state per delta over its own 4 keys whose scores are shifted by it, and the joint float64 softmax."""
    rng = np.random.default_rng(seed)
    states, all_scores, all_values = [], [], []
    for delta in deltas:
        scores = (rng.standard_normal((rows, heads, 4)) + delta).astype(dtype)
        values = rng.standard_normal((4, heads, dim)).astype(dtype)
        if np.isneginf(delta):
            states.append(empty(rows, heads, dim, dtype))
            continue
        top = scores.max(-1)
        weights = np.exp(scores - top[..., None])
        states.append(
            PartialState(max_=top, sum_=weights.sum(-1), out=np.einsum("ths,shd->thd", weights, values).astype(dtype))
        )
        all_scores.append(scores.astype(np.float64))
        all_values.append(values.astype(np.float64))
    if not all_scores:
        return states, np.zeros((rows, heads, dim))
    scores, values = np.concatenate(all_scores, -1), np.concatenate(all_values)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return states, np.einsum("ths,shd->thd", weights / weights.sum(-1, keepdims=True), values)


@given(
    seed=st.integers(0, 2**16),
    num_rows=st.integers(0, 6),
    num_keys=st.integers(0, 9),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 2), (3, 1)]),
    data=st.data(),
)
@settings(max_examples=60)
def test_attend_equals_dense_softmax(seed, num_rows, num_keys, heads, data):
    q, k, v = tensors(seed, num_rows, num_keys, *heads)
    positions = st.lists(st.integers(0, 12), min_size=num_rows + num_keys, max_size=num_rows + num_keys)
    pos = np.array(data.draw(positions), dtype=np.int64)
    q_pos, k_pos = pos[:num_rows], pos[num_rows:]
    state = attend(q, k, v, q_pos, k_pos, SCALE)
    out, sums = dense(q, k, v, q_pos, k_pos)
    np.testing.assert_allclose(finish(state), out, atol=1e-13)
    np.testing.assert_allclose(lse(state), sums, atol=1e-13)
    np.testing.assert_array_equal(state.is_empty, np.isneginf(sums))


@given(seed=st.integers(0, 2**16), cuts=st.lists(st.integers(0, 12), max_size=7), order=st.randoms())
@settings(max_examples=40)
def test_merging_parts_equals_attending_the_whole(seed, cuts, order):
    q, k, v = tensors(seed, 5, 12)
    q_pos, k_pos = np.arange(5) * 3, np.arange(12)
    edges = [0, *sorted(cuts), 12]
    parts = [attend(q, k[a:b], v[a:b], q_pos, k_pos[a:b], SCALE) for a, b in itertools.pairwise(edges)]
    order.shuffle(parts)
    whole = attend(q, k, v, q_pos, k_pos, SCALE)
    np.testing.assert_allclose(finish(merge(parts)), finish(whole), atol=1e-13)
    np.testing.assert_allclose(lse(merge(parts)), lse(whole), atol=1e-13)


def test_visibility_is_inclusive_and_heads_are_grouped():
    q, k, v = tensors(1, 2, 2)
    state = attend(q, k, v, np.array([0, 1]), np.array([1, 0]), SCALE)
    np.testing.assert_allclose(finish(state)[0], np.repeat(v[1], 2, axis=0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_empty_sides_give_zeros_and_minus_infinity(dtype):
    q, k, v = tensors(2, 3, 4, dtype=dtype)
    nothing = attend(q, k[:0], v[:0], np.arange(3), np.arange(0), SCALE)
    masked = attend(q, k, v, np.arange(3), np.arange(4) + 10, SCALE)
    for state in (nothing, masked, merge([nothing, masked]), empty(3, 4, 3, dtype)):
        assert state.is_empty.all()
        assert not finish(state).any()
        assert np.isneginf(lse(state)).all()
        assert state.out.dtype == state.max_.dtype == state.sum_.dtype == finish(state).dtype == dtype


def test_no_query_rows():
    q, k, v = tensors(3, 0, 4)
    assert finish(attend(q, k, v, np.arange(0), np.arange(4), SCALE)).shape == (0, 4, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_a_row_may_not_see_never_poisons_it(bad):
    q, k, v = tensors(4, 4, 4)
    good = finish(attend(q, k, v, np.arange(4), np.arange(4), SCALE))
    k[2, 0], v[2, 0] = bad, bad
    out = finish(attend(q, k, v, np.arange(4), np.arange(4), SCALE))
    np.testing.assert_array_equal(out[:2], good[:2])
    np.testing.assert_array_equal(out[:, 2:], good[:, 2:])  # query heads of the other KV head
    assert np.isnan(out[2:, :2]).all()


def test_a_bad_query_stays_in_its_row_and_an_empty_row_stays_empty():
    q, k, v = tensors(5, 3, 2)
    q[0], q[1, 0] = np.nan, np.inf
    state = attend(q, k, v, np.array([0, 1, 2]), np.array([1, 2]), SCALE)
    assert state.is_empty[0].all()
    assert np.isnan(state.out[1, 0]).all()
    assert np.isfinite(state.out[1, 1:]).all()
    assert np.isfinite(state.out[2]).all()


def test_merge_selects_empty_rows_away_whatever_they_hold():
    q, k, v = tensors(6, 2, 3)
    state = attend(q, k, v, np.full(2, 9), np.arange(3), SCALE)
    junk = PartialState(max_=np.full((2, 4), -np.inf), sum_=np.zeros((2, 4)), out=np.full((2, 4, 3), np.nan))
    for pair in ([state, junk], [junk, state]):
        np.testing.assert_array_equal(finish(merge(pair)), finish(state))
    assert not finish(merge([junk, junk])).any()
    assert not finish(junk).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("a", "b"), list(itertools.product(DELTAS, DELTAS)))
def test_s18_two_states_at_every_difference(a, b, dtype):
    states, right = shifted_states((a, b), dtype)
    for order in (states, states[::-1]):
        merged = merge(order)
        np.testing.assert_allclose(finish(merged), right, atol=1e-6 if dtype == np.float32 else 1e-13)
        assert np.isfinite(merged.out).all()
        assert merged.is_empty.all() == (np.isneginf(a) and np.isneginf(b))


@pytest.mark.parametrize("num_states", [2, 3, 4, 5, 6, 7, 8])
def test_s18_orders_of_merging(num_states):
    states, right = shifted_states(DELTAS[-num_states:], np.float32, seed=num_states)
    rng = np.random.default_rng(num_states)
    orders = list(itertools.permutations(range(num_states)))
    for pick in rng.permutation(len(orders))[:720]:
        np.testing.assert_allclose(finish(merge([states[i] for i in orders[pick]])), right, atol=1e-6)


def test_merge_keeps_the_order_given():
    states, _ = shifted_states((0.0, 0.1, 0.2), np.float32)
    by_hand = merge([merge(states[:2]), states[2]])
    np.testing.assert_array_equal(merge(states).out, by_hand.out)


def test_the_numpy_face_does_not_import_torch():
    code = "import sys, mcf.attn; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
