"""The partial attention state in numpy and its merge law (online softmax).

Shapes: T query rows, S keys, Hq query heads, Hkv KV heads (query head h reads KV head h // (Hq // Hkv)), d head size.
A row that sees no key is empty: max -inf, sum 0, output 0. What a row may not see never enters its sums: it is
selected away, not multiplied by zero, so that a NaN there cannot poison the row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PartialState:
    """Attention of T rows over some of their keys, not yet divided by the sum.

    `max_` [T, Hq] is the largest score; `sum_` [T, Hq] the sum of exp(score - max); `out` [T, Hq, d] the sum of
    exp(score - max) * value. Empty rows hold -inf, 0 and 0.
    """

    max_: Floats
    sum_: Floats
    out: Floats

    def __post_init__(self) -> None:
        assert (self.max_.ndim, self.out.ndim) == (2, 3), (self.max_.shape, self.out.shape)
        assert self.max_.shape == self.sum_.shape == self.out.shape[:2], (self.max_.shape, self.sum_.shape)

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        """True [T, Hq] where a row has seen no key."""
        return np.isneginf(self.max_)


def empty(num_rows: int, num_q_heads: int, head_dim: int, dtype: DTypeLike = np.float64) -> PartialState:
    """Return the state of rows that have seen nothing: the neutral element of `merge`."""
    shape = (num_rows, num_q_heads)
    return PartialState(
        max_=np.full(shape, -np.inf, dtype), sum_=np.zeros(shape, dtype), out=np.zeros((*shape, head_dim), dtype)
    )


def attend(q: Floats, k: Floats, v: Floats, q_pos: Ints, k_pos: Ints, scale: float) -> PartialState:
    """Attend q [T, Hq, d] to k and v [S, Hkv, d] where q_pos [T] >= k_pos [S]; computed in q's dtype.

    A NaN or inf in a key or value makes exactly those rows NaN that see it; one in a query, its own row.
    """
    _check_shapes(q, k, v, q_pos, k_pos)
    if 0 in (len(q), len(k)):
        return empty(len(q), q.shape[1], q.shape[2], q.dtype)
    visible = q_pos[:, None] >= k_pos[None, :]
    q_clean, kv_clean = _finite(q), _finite(k) & _finite(v)
    state = _attend_clean(
        _select(q, q_clean), _select(k, kv_clean).astype(q.dtype), _select(v, kv_clean).astype(q.dtype), visible, scale
    )
    foul = np.repeat(visible @ ~kv_clean, q.shape[1] // k.shape[1], axis=1)
    return _poison(state, foul | (~q_clean & visible.any(1, keepdims=True)))


def _finite(x: Floats) -> NDArray[np.bool_]:
    clean: NDArray[np.bool_] = np.logical_and.reduce(np.isfinite(x), axis=-1)
    return clean


def _select(x: Floats, keep: NDArray[np.bool_]) -> Floats:
    return np.where(keep[..., None], x, 0).astype(x.dtype, copy=False)


def _check_shapes(q: Floats, k: Floats, v: Floats, q_pos: Ints, k_pos: Ints) -> None:
    assert q.ndim == k.ndim == 3, (q.shape, k.shape)
    assert k.shape == v.shape, (k.shape, v.shape)
    assert (q.shape[2], q.shape[1] % k.shape[1]) == (k.shape[2], 0), (q.shape, k.shape)
    assert (q_pos.shape, k_pos.shape) == (q.shape[:1], k.shape[:1]), (q_pos.shape, k_pos.shape)


def _attend_clean(q: Floats, k: Floats, v: Floats, visible: NDArray[np.bool_], scale: float) -> PartialState:
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    grouped = q.reshape(num_rows, num_kv_heads, -1, head_dim).transpose(1, 2, 0, 3)  # [Hkv, G, T, d]
    scores = (grouped @ k.transpose(1, 2, 0)[:, None]) * q.dtype.type(scale)  # [Hkv, G, T, S]
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1)
    weights = np.exp(scores - np.where(np.isneginf(top), 0, top)[..., None])
    out = (weights @ v.transpose(1, 0, 2)[:, None]).transpose(2, 0, 1, 3)
    flat = (num_rows, num_q_heads)
    return PartialState(
        max_=top.transpose(2, 0, 1).reshape(flat),
        sum_=weights.sum(-1).transpose(2, 0, 1).reshape(flat),
        out=out.reshape(*flat, head_dim),
    )


def _poison(state: PartialState, rows: NDArray[np.bool_]) -> PartialState:
    if not rows.any():
        return state
    max_, sum_ = (np.where(rows, np.nan, x).astype(x.dtype) for x in (state.max_, state.sum_))
    out = np.where(rows[..., None], np.nan, state.out).astype(state.out.dtype)
    return PartialState(max_=max_, sum_=sum_, out=out)


def merge(states: Sequence[PartialState]) -> PartialState:
    """Merge partial states of the same rows over disjoint keys, in the order given. Needs at least one state."""
    assert states, "merge needs at least one state"
    total = states[0]
    for state in states[1:]:
        total = _merge_two(total, state)
    return total


def _merge_two(a: PartialState, b: PartialState) -> PartialState:
    assert a.out.shape == b.out.shape, (a.out.shape, b.out.shape)
    top = np.maximum(a.max_, b.max_)
    base = np.where(np.isneginf(top), 0, top).astype(top.dtype)
    weight_a, weight_b = np.exp(a.max_ - base), np.exp(b.max_ - base)
    return PartialState(
        max_=top,
        sum_=a.sum_ * weight_a + b.sum_ * weight_b,
        out=_live_out(a) * weight_a[..., None] + _live_out(b) * weight_b[..., None],
    )


def _live_out(state: PartialState) -> Floats:
    """Return the output with empty rows selected to zero, whatever they hold."""
    return _select(state.out, ~state.is_empty)


def finish(state: PartialState) -> Floats:
    """Return the attention output [T, Hq, d]; rows that saw nothing give zeros."""
    divisor = np.where(state.is_empty, 1, state.sum_).astype(state.sum_.dtype)
    return _live_out(state) / divisor[..., None]


def lse(state: PartialState) -> Floats:
    """Return the log of the sum of exp(score) per row and head [T, Hq]; -inf where nothing was seen."""
    divisor = np.where(state.is_empty, 1, state.sum_).astype(state.sum_.dtype)
    return state.max_ + np.log(divisor)
