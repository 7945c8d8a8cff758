"""Attention in bfloat16 by matrix products: as right as the fused kernel, and honest where its guess was too low."""

import numpy as np
import pytest
import torch

from mcf.attn import bf16, kernels
from mcf.attn.kernels import attend_spans

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def inputs(seed, num_rows, num_keys, heads, head_dim, gain=1.0):
    """Folded q [Hkv, R, d], and k and v [S, Hkv, d] as views of a pool."""
    num_q_heads, num_kv_heads = heads
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(num_kv_heads, num_rows * num_q_heads // num_kv_heads, head_dim, generator=generator)
    pool = torch.randn(num_keys, 2, num_kv_heads, head_dim, generator=generator).bfloat16()
    return (q * gain).bfloat16(), pool[:, 0], pool[:, 1]


def right(q, k, v, scale):
    """Output and lse in float64."""
    scores = torch.einsum("hrd,shd->hrs", q.double(), k.double()) * scale
    return torch.einsum("hrs,shd->hrd", scores.softmax(-1), v.double()), scores.logsumexp(-1)


def error(found, wanted):
    return float((found.double() - wanted).square().mean().sqrt())


@pytest.mark.parametrize("gain", [0.1, 1.0, 30.0])
@pytest.mark.parametrize(("heads", "head_dim"), [((9, 3), 64), ((4, 4), 20), ((8, 2), 128)])
def test_it_is_as_right_as_the_fused_kernel(heads, head_dim, gain):
    scale = head_dim**-0.5
    q, k, v = inputs(1, 256, 700, heads, head_dim, gain)
    out, lse = right(q, k, v, scale)
    found = bf16.attend(q, k, v, scale)
    fused = FUSED(q[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], 0.0, False, scale=scale)
    assert found is not None
    assert found[0].dtype == found[1].dtype == torch.float32
    assert error(found[0], out) < 1.5 * error(fused[0][0], out)
    np.testing.assert_allclose(found[1], lse, rtol=1e-4, atol=4e-3)


@pytest.mark.parametrize(("rows", "keys"), [(1, 1), (3, 130), (600, 513), (1100, 1025)])
def test_any_number_of_rows_and_keys(rows, keys):
    q, k, v = inputs(2, rows, keys, (3, 1), 16)
    out, lse = right(q, k, v, 0.25)
    found = bf16.attend(q, k, v, 0.25)
    assert found is not None
    np.testing.assert_allclose(found[0], out, atol=2e-2)
    np.testing.assert_allclose(found[1], lse, atol=4e-3)  # weights are rounded to 8 bits


@pytest.mark.parametrize("gain", [0.1, 5.0])
@pytest.mark.parametrize("num_tokens", [1, 2, 100, 128, 300, 512])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2)])
def test_a_causal_square(heads, num_tokens, gain):
    q, k, v = inputs(6, num_tokens, num_tokens, heads, 16, gain)
    found = bf16.attend_square(q, k, v, 0.25)
    assert found is not None
    group = q.shape[1] // num_tokens
    for t in {0, 1 % num_tokens, num_tokens // 2, num_tokens - 1}:
        rows = slice(t * group, (t + 1) * group)
        out, lse = right(q[:, rows], k[: t + 1], v[: t + 1], 0.25)
        np.testing.assert_allclose(found[0][:, rows], out, atol=2e-2)
        np.testing.assert_allclose(found[1][:, rows], lse, atol=4e-3)


def test_keys_that_a_row_does_not_see_do_not_matter_however_large_their_scores():
    q, k, v = inputs(7, 200, 200, (3, 1), 16)
    alone = attend_spans(q.reshape(200, 3, 16), [(0, 200)], [(k, v, 0)], 0.25)
    k, v = k.clone(), v.clone()
    k[100], v[100] = 1000 * q[0, 0], 1e4
    found = attend_spans(q.reshape(200, 3, 16), [(0, 200)], [(k, v, 0)], 0.25)
    np.testing.assert_allclose(found.out[:100], alone.out[:100], atol=1e-2)
    np.testing.assert_allclose(found.lse[:100], alone.lse[:100], atol=4e-3)


def test_pieces_and_history_agree_with_the_fused_kernel(monkeypatch):
    """Squares above and below the largest, strips between them, history in pages."""
    generator = torch.Generator().manual_seed(8)
    spans = [(700, 1400), (1500, 1650)]
    q = torch.randn(850, 6, 16, generator=generator).bfloat16()
    kv = torch.randn(1650, 2, 2, 16, generator=generator).bfloat16()
    runs = [
        (kv[lo:hi, 0], kv[lo:hi, 1], lo) for lo, hi in [(0, 64), (64, 700), (700, 1400), (1400, 1500), (1500, 1650)]
    ]
    by_products = attend_spans(q, spans, runs, 0.25)
    monkeypatch.setattr(bf16, "_has_products", lambda: False)
    by_fused = attend_spans(q, spans, runs, 0.25)
    np.testing.assert_allclose(by_products.out, by_fused.out, atol=2e-2)
    np.testing.assert_allclose(by_products.lse, by_fused.lse, atol=4e-3)


def test_a_largest_key_that_no_sample_sees_is_noticed(monkeypatch):
    guess = bf16._guess
    q, k, v = inputs(3, 200, 640, (3, 1), 16)
    k[639] = 64 * q[0, 0]  # its score is 40 above all others and more
    guesses = []
    monkeypatch.setattr(bf16, "_guess", lambda *args: guesses.append(guess(*args)) or guesses[-1])
    found = bf16.attend(q, k, v, 0.25)
    out, lse = right(q, k, v, 0.25)
    assert len(guesses) == 2
    assert found is not None
    np.testing.assert_allclose(found[0], out, atol=2e-2)
    np.testing.assert_allclose(found[1], lse, atol=4e-3)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_not_finite_is_left_to_the_fused_kernel(bad, which):
    both = inputs(4, 64, 256, (2, 1), 16)
    both[which][0, 0] = bad
    assert bf16.attend(*both, 0.25) is None
    assert bf16.attend_square(both[0], both[1][:64], both[2][:64], 0.25) is None


def test_large_calls_in_bfloat16_take_the_products_where_the_processor_has_them():
    has = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    assert bf16.is_fast(torch.bfloat16, 512, 512) == has
    assert not bf16.is_fast(torch.float32, 512, 512)
    assert not bf16.is_fast(torch.bfloat16, 512, 64)
    assert not bf16.is_fast(torch.bfloat16, 16, 512)


def test_without_them_the_fused_kernel_is_taken(monkeypatch):
    q, k, v = inputs(5, 256, 512, (2, 1), 16)
    rows = q.transpose(0, 1).reshape(256, 2, 16)
    by_products = attend_spans(rows, [(512, 768)], [(k, v, 0)], 0.25)
    monkeypatch.setattr(bf16, "_has_products", lambda: False)
    monkeypatch.setattr(kernels.bf16, "attend", lambda *args: pytest.fail("the processor cannot do that fast"))
    by_fused = attend_spans(rows, [(512, 768)], [(k, v, 0)], 0.25)
    np.testing.assert_allclose(by_products.out, by_fused.out, atol=2e-2)
    np.testing.assert_allclose(by_products.lse, by_fused.lse, atol=2e-3)
