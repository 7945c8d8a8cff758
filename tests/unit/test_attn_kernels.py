import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mcf.attn import PartialState, attend
from mcf.attn import finish as numpy_finish
from mcf.attn import lse as numpy_lse
from mcf.attn import merge as numpy_merge
from mcf.attn.kernels import (
    STATE_EXTRA,
    TorchState,
    attend_decode,
    attend_spans,
    empty_state,
    finish,
    merge_states,
    pack_state,
    unpack_state,
)
from mcf.attn.spans import SQUARE_TOKENS, plan_calls

SCALE = 0.25
DELTAS = (0.0, 30.0, -30.0, 100.0, -100.0, 1000.0, -1000.0, -np.inf)
# bfloat16 keeps 8 bits: the kernel rounds the weights and its output to it
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
DTYPES = [torch.float32, torch.bfloat16]


def numpy_of(tensor):
    return tensor.double().numpy()


def make_q(seed, num_rows, num_heads, head_dim, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num_rows, num_heads, head_dim, generator=generator).to(dtype)


def make_runs(seed, kv_spans, num_kv_heads, head_dim, dtype=torch.float32):
    """Runs as strided views of one pool [tokens, 2, Hkv, d], shuffled in memory, NaN wherever no run is."""
    generator = torch.Generator().manual_seed(seed + 1)
    size = sum(hi - lo + 1 for lo, hi in kv_spans) + 1
    pool = torch.full((size, 2, num_kv_heads, head_dim), torch.nan, dtype=dtype)
    runs, at = {}, 1
    for index in random.Random(seed).sample(range(len(kv_spans)), len(kv_spans)):
        lo, hi = kv_spans[index]
        place = pool[at : at + hi - lo]
        place[:] = torch.randn(place.shape, generator=generator).to(dtype)
        runs[index] = (place[:, 0], place[:, 1], lo)
        at += hi - lo + 1
    return [runs[index] for index in range(len(kv_spans))]


def oracle(q, q_spans, runs, scale=SCALE):
    """The numpy state in float64 over all runs at once."""
    q_pos = np.concatenate([np.arange(lo, hi) for lo, hi in q_spans] or [np.arange(0)])
    k_pos = np.concatenate([np.arange(lo, lo + len(k)) for k, _, lo in runs] or [np.arange(0)])
    shape = runs[0][0].shape if runs else (0, 1, q.shape[2])
    k, v = (np.concatenate([numpy_of(run[i]) for run in runs] or [np.zeros((0, *shape[1:]))]) for i in (0, 1))
    return attend(numpy_of(q), k, v, q_pos, k_pos, scale)


def assert_agrees(state, right, dtype=torch.float32):
    assert state.lse.dtype == state.out.dtype == torch.float32
    np.testing.assert_allclose(numpy_of(state.out), numpy_finish(right), atol=TOLERANCE[dtype])
    np.testing.assert_allclose(numpy_of(state.lse), numpy_lse(right), atol=TOLERANCE[dtype])
    np.testing.assert_array_equal(state.is_empty.numpy(), right.is_empty)


@st.composite
def span_lists(draw, max_spans, max_len):
    """Disjoint half-open spans in shuffled order, with gaps, some of them empty."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, max_len)), max_size=max_spans))
    spans, at = [], 0
    for gap, length in lengths:
        spans.append((at + gap, at + gap + length))
        at += gap + length
    return draw(st.permutations(spans))


# --- spans -----------------------------------------------------------------------------------------------------------


def seen_places(call, kv_spans, q_pos):
    """The (row, key position) places that a call attends; checks that the call can be made."""
    assert call.row_lo < call.row_hi
    rows = range(call.row_lo, call.row_hi)
    places = []
    for run, lo, hi in call.keys:
        assert 0 <= lo < hi <= kv_spans[run][1] - kv_spans[run][0]
        keys = range(kv_spans[run][0] + lo, kv_spans[run][0] + hi)
        if call.square:
            assert [q_pos[row] for row in rows] == list(keys)
            assert len(rows) % call.square == 0
        for (i, row), (j, key) in itertools.product(enumerate(rows), enumerate(keys)):
            if not call.square or (i // call.square == j // call.square and i >= j):
                places.append((row, key))
    return places


@given(q_spans=span_lists(3, 150), kv_spans=span_lists(5, 150))
@settings(max_examples=60)
def test_calls_cover_exactly_what_is_visible(q_spans, kv_spans):
    q_pos = [pos for span in q_spans for pos in range(*span)]
    seen = []
    for call in plan_calls(tuple(q_spans), tuple(kv_spans)):
        assert not call.square or (len(call.keys) == 1 and 1 < call.square <= SQUARE_TOKENS)
        seen += seen_places(call, kv_spans, q_pos)
    kv_pos = [pos for span in kv_spans for pos in range(*span)]
    right = [(row, key) for row, pos in enumerate(q_pos) for key in kv_pos if key <= pos]
    assert sorted(seen) == sorted(right)


def test_history_of_all_spans_is_one_call_and_own_pieces_are_squares():
    calls = plan_calls(((8, 12), (20, 24)), ((0, 4), (4, 8), (8, 12), (20, 24), (30, 40)))
    assert calls == (
        (0, 8, 0, ((0, 0, 4), (1, 0, 4))),
        (4, 8, 0, ((2, 0, 4),)),
        (0, 4, 4, ((2, 0, 4),)),
        (4, 8, 4, ((3, 0, 4),)),
    )


def test_a_large_square_is_cut_into_small_squares_and_strips():
    calls = plan_calls(((0, 150),), ((0, 150),))
    assert set(calls) == {
        (0, 128, 64, ((0, 0, 128),)),
        (128, 150, 22, ((0, 128, 150),)),
        (64, 128, 0, ((0, 0, 64),)),
        (128, 150, 0, ((0, 0, 128),)),
    }


def test_one_new_token_is_one_unmasked_call():
    assert plan_calls(((9, 10),), ((0, 10),)) == ((0, 1, 0, ((0, 0, 10),)),)


# --- attend_spans ----------------------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**16),
    q_spans=span_lists(3, 20) | span_lists(2, 150),
    kv_spans=span_lists(6, 20) | span_lists(3, 150),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (9, 3), (3, 1)]),
    head_dim=st.sampled_from([4, 16, 20]),
    dtype=st.sampled_from(DTYPES),
)
@example(seed=0, q_spans=[(0, 5)], kv_spans=[], heads=(2, 1), head_dim=4, dtype=torch.float32)
@example(seed=0, q_spans=[], kv_spans=[(0, 5)], heads=(2, 1), head_dim=4, dtype=torch.float32)
@example(seed=0, q_spans=[(0, 5)], kv_spans=[(5, 9)], heads=(2, 1), head_dim=4, dtype=torch.bfloat16)
@settings(max_examples=120)
def test_random_spans_agree_with_the_numpy_state(seed, q_spans, kv_spans, heads, head_dim, dtype):
    q = make_q(seed, sum(hi - lo for lo, hi in q_spans), heads[0], head_dim, dtype)
    runs = make_runs(seed, kv_spans, heads[1], head_dim, dtype)
    with torch.inference_mode():
        assert_agrees(attend_spans(q, q_spans, runs, SCALE), oracle(q, q_spans, runs), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_long_piece_with_many_small_and_large_runs(dtype):
    q_spans = [(700, 860), (1500, 1600)]
    kv_spans = [(64 * i, 64 * i + 64) for i in range(9)] + [(576, 700), (700, 860), (860, 1500), (1500, 1600)]
    q, runs = make_q(3, 260, 9, 16, dtype), make_runs(3, kv_spans, 3, 16, dtype)
    assert_agrees(attend_spans(q, q_spans, runs, SCALE), oracle(q, q_spans, runs), dtype)


def test_more_small_runs_than_one_copy_holds():
    kv_spans = [(500 * i, 500 * i + 500) for i in range(20)]
    q, runs = make_q(4, 6, 4, 8), make_runs(4, kv_spans, 2, 8)
    assert_agrees(attend_spans(q, [(10_000, 10_006)], runs, SCALE), oracle(q, [(10_000, 10_006)], runs))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_in_foreign_places_never_poisons(dtype):
    kv_spans = [(0, 30), (30, 50), (50, 80)]
    q, runs = make_q(5, 20, 4, 16, dtype), make_runs(5, kv_spans, 2, 16, dtype)
    right = attend_spans(q, [(30, 50)], runs[:2], SCALE)
    runs[2][0].fill_(torch.nan)  # nobody may see it
    runs[2][1].fill_(torch.nan)
    state = attend_spans(q, [(30, 50)], runs, SCALE)
    assert torch.equal(state.out, right.out)
    assert torch.equal(state.lse, right.lse)


def test_nan_in_later_tokens_of_a_ragged_run_never_poisons():
    q, runs = make_q(6, 10, 4, 16), make_runs(6, [(0, 60)], 2, 16)
    right = attend_spans(q, [(20, 30)], [(runs[0][0][:30], runs[0][1][:30], 0)], SCALE)
    for x in runs[0][:2]:
        x[30:] = torch.nan
    assert torch.equal(attend_spans(q, [(20, 30)], runs, SCALE).out, right.out)


def test_the_inputs_are_left_alone_and_the_result_is_not_a_view():
    q, runs = make_q(7, 20, 4, 8), make_runs(7, [(0, 20)], 2, 8)
    copies = [x.clone() for x in (q, *runs[0][:2])]
    state = attend_spans(q, [(0, 20)], runs, SCALE)
    state.out.zero_()
    for x, copy in zip((q, *runs[0][:2]), copies, strict=True):
        assert torch.equal(x, copy)


# --- attend_decode ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (9, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("lengths", [(1,), (0, 5, 0), (64, 3, 700), (600, 700), (4096,), (4500, 4096), (1,) * 9])
def test_decode_agrees_with_the_numpy_state(dtype, heads, lengths):
    edges = [0, *itertools.accumulate(lengths)]
    spans = list(itertools.pairwise(edges))
    q, runs = make_q(8, 1, heads[0], 16, dtype), make_runs(8, spans, heads[1], 16, dtype)
    with torch.inference_mode():
        state = attend_decode(q, [(k, v) for k, v, _ in runs], SCALE)
    assert_agrees(state, oracle(q, [(edges[-1], edges[-1] + 1)], runs), dtype)


def test_decode_with_nothing_to_see_is_empty():
    q = make_q(9, 1, 4, 8)
    nothing = torch.zeros(0, 2, 8)
    for pairs in ([], [(nothing, nothing)]):
        state = attend_decode(q, pairs, SCALE)
        assert state.is_empty.all()
        assert not state.out.any()


# --- the merge law (S18) ---------------------------------------------------------------------------------------------


def shifted_states(deltas, dtype, seed=0, rows=2, heads=2, dim=3):
    """One state per delta with lse near it, from inputs of `dtype`; and the joint float64 softmax."""
    generator = torch.Generator().manual_seed(seed)
    states, scores, values = [], [], []
    for delta in deltas:
        score = (torch.randn(rows, heads, 4, generator=generator) + delta).to(dtype).double()
        value = torch.randn(4, heads, dim, generator=generator).to(dtype).double()
        lse = torch.logsumexp(score, -1)
        # float32 keeps the lse of a state to about 1e-4 at 1000: move the scores by that rounding, so that the
        # oracle and the states speak of the same numbers
        score = (score - lse.unsqueeze(-1)).nan_to_num(nan=-torch.inf) + lse.float().double().unsqueeze(-1)
        out = torch.einsum("ths,shd->thd", torch.softmax(score, -1).nan_to_num(), value)
        states.append(TorchState(lse=lse.float(), out=out.float()))
        scores.append(score)
        values.append(value)
    weights = torch.softmax(torch.cat(scores, -1), -1).nan_to_num()
    return states, torch.einsum("ths,shd->thd", weights, torch.cat(values)).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("a", "b"), list(itertools.product(DELTAS, DELTAS)))
def test_s18_two_states_at_every_difference(a, b, dtype):
    states, right = shifted_states((a, b), dtype)
    for order in (states, states[::-1]):
        merged = merge_states(order)
        np.testing.assert_allclose(numpy_of(merged.out), right, atol=1e-6)
        assert bool(merged.is_empty.all()) == (np.isneginf(a) and np.isneginf(b))
        assert not merged.lse.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_states", [2, 3, 4, 5, 6, 7, 8])
def test_s18_orders_of_merging(num_states, dtype):
    states, right = shifted_states(DELTAS[-num_states:], dtype, seed=num_states)
    orders = list(itertools.permutations(range(num_states)))
    for order in random.Random(num_states).sample(orders, min(len(orders), 240)):
        np.testing.assert_allclose(numpy_of(merge_states([states[i] for i in order]).out), right, atol=1e-6)


@given(
    seed=st.integers(0, 2**16),
    deltas=st.lists(st.floats(-20, 20) | st.just(-np.inf), min_size=2, max_size=8),
    data=st.data(),
)
@settings(max_examples=50)
def test_s18_any_tree_of_merges(seed, deltas, data):
    states, right = shifted_states(deltas, torch.float32, seed=seed)
    while len(states) > 1:
        cut = data.draw(st.integers(2, len(states)))
        states = [*states[cut:], merge_states(states[:cut])]
    # each merge rounds the lse, of magnitude up to 22, to 1e-6
    np.testing.assert_allclose(numpy_of(states[0].out), right, atol=1e-5)


def test_merge_agrees_with_the_numpy_law_over_the_wire():
    states, _ = shifted_states(DELTAS, torch.float32)
    packed = [pack_state(state).numpy() for state in states]
    by_numpy = numpy_merge([PartialState(max_=p[..., 0], sum_=p[..., 1], out=p[..., STATE_EXTRA:]) for p in packed])
    np.testing.assert_allclose(numpy_of(merge_states(states).out), numpy_finish(by_numpy), atol=1e-6)


def test_merge_selects_empty_rows_away_whatever_they_hold():
    (state,), _ = shifted_states((0.0,), torch.float32)
    junk = TorchState(lse=torch.full((2, 2), -torch.inf), out=torch.full((2, 2, 3), torch.nan))
    for pair in ([state, junk], [junk, state]):
        assert torch.equal(merge_states(pair).out, state.out)
        assert torch.equal(merge_states(pair).lse, state.lse)
    assert merge_states([junk, junk]).is_empty.all()
    assert not merge_states([junk, junk]).out.any()
    assert not finish(junk, torch.float32).any()


def test_merge_of_parts_equals_attending_the_whole():
    kv_spans = [(0, 40), (40, 77), (77, 90)]
    q, runs = make_q(10, 13, 4, 16), make_runs(10, kv_spans, 2, 16)
    parts = [attend_spans(q, [(77, 90)], [run], SCALE) for run in runs]
    assert_agrees(merge_states(parts), oracle(q, [(77, 90)], runs))


# --- the wire form ---------------------------------------------------------------------------------------------------


def test_pack_and_unpack_are_inverse_and_empty_rows_are_marked():
    states, _ = shifted_states((0.0, -np.inf), torch.float32)
    for state in states:
        packed = pack_state(state)
        assert packed.shape == (2, 2, 3 + STATE_EXTRA)
        assert packed.numel() == 2 * 2 * (3 + 2)
        assert torch.equal(packed[..., 1], (~state.is_empty).float())
        back = unpack_state(packed)
        assert torch.equal(back.lse, state.lse)
        assert torch.equal(back.out, state.out)


def test_pack_into_a_buffer():
    (state,), _ = shifted_states((3.0,), torch.float32)
    buffer = torch.full((2, 2, 5), torch.nan)
    assert pack_state(state, buffer) is buffer
    assert torch.equal(buffer, pack_state(state))


@pytest.mark.parametrize("dtype", DTYPES)
def test_finish_casts_and_gives_zeros_for_empty_rows(dtype):
    (state,), right = shifted_states((0.0,), torch.float32)
    assert finish(state, dtype).dtype == dtype
    np.testing.assert_allclose(numpy_of(finish(state, dtype)), right, atol=TOLERANCE[dtype])
    assert not finish(empty_state(2, 3, 4), dtype).any()
