"""Attention in bfloat16 as two matrix products with the exponential inside the first: three times the rate of
the fused kernel on long histories, which computes bfloat16 no faster than float32 (benchmarks/kernels/results).

The weights exp(s - m) of a row need no exact maximum, only an m near it: in the end they are divided by their own sum.
So m is the largest of some scores plus a margin. All x = s - m are then far below zero, where the logistic function is
the exponential, e^x / (1 + e^x) = e^x (1 - e^x + ...), and that one oneDNN applies to the float32 sums of a product
before it rounds them. -m itself is two more columns of the queries, against ones among the keys. Where m was too low
the sum of a row shows it, and the largest of all scores is taken instead.

Shapes: Hkv KV heads, R = T * G folded query rows (see `mcf.attn.kernels`), S keys, d head size.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

SQUARE_TOKENS = 512  # the largest causal square; all of its keys are one block
_LEAST_KEYS = 128  # below, and below so many weights per head, the fused kernel is faster (benchmarks/kernels)
_LEAST_WEIGHTS = 1 << 16
_ROWS, _KEYS = 1536, 512  # the largest block of weights: 1.5 MB, the second-level cache; measured
_STEP_TOKENS = 128  # a causal square is computed in steps of so many queries: what is masked is half of a step
_SAMPLES = 32  # keys that the guess looks at, the first among them
_MARGIN = 40.0  # above the guess; what lies below its e^-47 is rounded to zero
_MOST = math.exp(-8.0)  # of a row's sum: no weight is larger, so none is off by more than 3e-4 of itself


def is_fast(dtype: torch.dtype, num_rows: int, num_keys: int) -> bool:
    """Say whether these functions are the faster way for so many folded rows and keys on this machine."""
    is_large = num_keys >= _LEAST_KEYS and num_rows * num_keys >= _LEAST_WEIGHTS
    return is_large and dtype is torch.bfloat16 and _has_products()


def attend(folded: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
    """Attend folded q [Hkv, R, d] to all of k and v [S, Hkv, d], bfloat16 -> out [Hkv, R, d], lse [Hkv, R] float32.

    None where a value is not finite: nothing is known then.
    """
    return _attend(folded, k, v, scale, group=0)


def attend_square(folded: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor] | None:
    """Do the same where row t * G + g sees the keys 0..t only: R = S * G, S at most `SQUARE_TOKENS`."""
    assert len(k) <= SQUARE_TOKENS, len(k)
    return _attend(folded, k, v, scale, group=folded.shape[1] // len(k))


def _attend(folded: Tensor, k: Tensor, v: Tensor, scale: float, *, group: int) -> tuple[Tensor, Tensor] | None:
    """Attend, causally where `group` is not 0."""
    for num_samples in (_SAMPLES, len(k)):
        guess = _guess(folded, k, scale, num_samples, group)
        queries, keys = _with_guess(folded, k, scale, guess)
        out, total = torch.zeros(folded.shape), torch.zeros(folded.shape[:2])
        for head in range(len(folded)):
            if group:
                _weigh_square(queries[head], keys[head], v[:, head], group, out[head], total[head])
            else:
                _weigh(queries[head], keys[head], v[:, head], out[head], total[head])
        if bool(((total < _MOST) & (total > 0)).all()):
            return out.div_(total.unsqueeze(-1)), guess.add_(total.log_())
    return None


def _weigh(queries: Tensor, keys: Tensor, v: Tensor, out: Tensor, total: Tensor) -> None:
    """Add one head's weighted sums of v to out [R, d], and the sums of the weights to total [R], block by block."""
    for lo in range(0, len(queries), _ROWS):
        rows = slice(lo, lo + _ROWS)
        for first in range(0, len(v), _KEYS):
            weights = _exp_product(queries[rows], keys[first : first + _KEYS])
            total[rows] += weights.sum(-1, dtype=torch.float32)
            out[rows] += weights @ v[first : first + _KEYS]


def _weigh_square(queries: Tensor, keys: Tensor, v: Tensor, group: int, out: Tensor, total: Tensor) -> None:
    """Do the same for a causal square, a step of queries after the other."""
    seen = _seen_keys(_STEP_TOKENS, group)
    for lo in range(0, len(keys), _STEP_TOKENS):
        hi = min(lo + _STEP_TOKENS, len(keys))
        rows = slice(lo * group, hi * group)
        weights = _exp_product(queries[rows], keys[:hi])
        weights[:, lo:].mul_(seen[: (hi - lo) * group, : hi - lo])
        total[rows] = weights.sum(-1, dtype=torch.float32)
        out[rows] = (weights @ v[:hi]).float()


@lru_cache(maxsize=64)
def _later_keys(num_tokens: int, group: int, step: int = 1) -> Tensor:
    """Return [T * G, ceil(T / step)]: whether every step-th key stands behind the row's token."""
    tokens = torch.arange(num_tokens)
    return (tokens[None, ::step] > tokens[:, None]).repeat_interleave(group, 0)


@lru_cache(maxsize=8)
def _seen_keys(num_tokens: int, group: int) -> Tensor:
    """Return [T * G, T] in bfloat16: 1 where the row's token sees the key. To multiply beats to fill."""
    return (~_later_keys(num_tokens, group)).bfloat16()


def _has_products() -> bool:
    """Say whether the processor multiplies bfloat16; without, the products are slower than the fused kernel."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _guess(folded: Tensor, k: Tensor, scale: float, num_samples: int, group: int) -> Tensor:
    """Return m [Hkv, R]: the largest visible of some scores, and the margin, as the sum of two bfloat16 numbers."""
    step = max(1, len(k) // num_samples)
    scores = torch.bmm(k[::step].transpose(0, 1), folded.transpose(1, 2))  # [Hkv, keys, R]: the maximum is vectorised
    if group:
        scores.masked_fill_(_later_keys(len(k), group, step).T, -torch.inf)
    top = scores.amax(1).float().mul_(scale).add_(_MARGIN)
    high = top.bfloat16().float()
    return high + (top - high).bfloat16().float()


def _with_guess(folded: Tensor, k: Tensor, scale: float, guess: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries [Hkv, R, n] and keys [Hkv, S, n] whose products are the scores less the guess.

    A scale that is no power of two leaves a rest of each scaled query, which gets columns of its own.
    """
    parts, width = [folded * scale], folded.shape[2]
    if math.frexp(scale)[0] != 0.5:
        parts.append((folded.float() * scale - parts[0].float()).bfloat16())
    high = guess.bfloat16()
    low = (guess - high.float()).bfloat16()
    queries = torch.cat([*parts, -high.unsqueeze(-1), -low.unsqueeze(-1)], -1)
    keys = k.new_ones(k.shape[1], len(k), queries.shape[2])
    for index in range(len(parts)):
        keys[..., index * width : (index + 1) * width] = k.transpose(0, 1)
    return queries, keys


def _exp_product(queries: Tensor, keys: Tensor) -> Tensor:
    """Return exp(queries [R, n] @ keys [S, n]^T) as bfloat16 [R, S], for products far below zero."""
    weights: Tensor = torch.ops.mkldnn._linear_pointwise(queries, keys, None, "sigmoid", [], "")
    return weights
