"""Partial attention on CPUs with torch, for real workers.

The kernel is torch's fused CPU attention, which returns the output and the log-sum-exp; large calls in bfloat16 take
`mcf.attn.bf16`. The fused kernel must never see an empty KV set (it kills the process) or a fully masked row (it gives
lse 0), so `mcf.attn.spans` first cuts all work into unmasked calls and causal squares. In unmasked calls the query
heads of a group are folded into the sequence axis: KV heads are then not repeated, and one-token decode is faster than
with a batched matrix product (benchmarks/kernels).

Shapes: T query rows, S keys, Hq query heads, Hkv KV heads, G = Hq // Hkv, d head size. K and V may be strided views
(last stride 1), such as those of a pool [tokens, 2, Hkv, d]: the kernel reads them in place, as fast as packed ones.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from mcf.attn import bf16
from mcf.attn.spans import SQUARE_TOKENS, Call, Span, plan_calls
from mcf.attn.torch_state import (
    STATE_EXTRA,
    TorchState,
    empty_state,
    finish,
    merge_states,
    pack_state,
    unpack_state,
)

__all__ = [
    "STATE_EXTRA",
    "TorchState",
    "attend_decode",
    "attend_spans",
    "empty_state",
    "finish",
    "merge_states",
    "pack_state",
    "unpack_state",
]

KvPair = tuple[Tensor, Tensor]  # k and v, each [S, Hkv, d]
KvRun = tuple[Tensor, Tensor, int]  # k, v and the position of their first token

_BLOCK_TOKENS = 512  # with few query rows, a long run goes to the kernel as a batch of such blocks: cache and threads
_LONG_TOKENS = 4096  # a run is long from here: one token over 16K tokens of 8 x 128 heads then takes 0.6 to 0.8 as long
_FEW_ROWS = 16  # at most so many folded rows count as few
_COPY_TOKENS = 4096  # short runs are copied together up to this many tokens: one call instead of a merge each


class _Total:
    """A running online softmax over the calls of one `attend_spans`, by rows of q; float32.

    A first call on all rows is taken as it is; one token's attention is often no more than that.
    """

    def __init__(self, q: Tensor) -> None:
        self._shape = q.shape
        self._state: TorchState | None = None  # normalised, as long as it holds one call
        self._sum: Tensor | None = None

    def add(self, lo: int, hi: int, out: Tensor, lse: Tensor) -> None:
        """Add out [R, Hq, d] and finite lse [R, Hq] of rows `lo:hi`; both may be kept and changed."""
        if self._state is None and hi - lo == self._shape[0]:
            self._state = TorchState(lse=lse, out=out.float())
            return
        state, total = self._open()
        top = torch.maximum(state.lse[lo:hi], lse)
        old, new = torch.exp(state.lse[lo:hi] - top), torch.exp(lse - top)
        state.lse[lo:hi] = top
        total[lo:hi].mul_(old).add_(new)
        state.out[lo:hi].mul_(old.unsqueeze(-1)).addcmul_(out.float(), new.unsqueeze(-1))

    def _open(self) -> tuple[TorchState, Tensor]:
        """Return the state whose `lse` is the largest so far, and the sum of weights by which `out` must be divided."""
        if self._state is None:
            self._state = empty_state(*self._shape)
            self._sum = torch.zeros_like(self._state.lse)
        elif self._sum is None:
            self._sum = torch.ones_like(self._state.lse)
        assert self._sum is not None
        return self._state, self._sum

    def state(self) -> TorchState:
        """Return the normalised state; rows that nothing was added to are empty."""
        if self._state is None or self._sum is None:
            return self._state or empty_state(*self._shape)
        out = self._state.out.div_(self._sum.clamp_min(1.0).unsqueeze(-1))
        return TorchState(lse=self._state.lse + self._sum.log(), out=out)


def attend_spans(q: Tensor, q_spans: Sequence[Span], kv_runs: Sequence[KvRun], scale: float) -> TorchState:
    """Attend q [T, Hq, d] to KV runs by position: query position >= key position.

    `q_spans` are the half-open position spans of q's rows, concatenated in this order; each run is k and v [S, Hkv, d]
    of one contiguous position span and its first position. Rows that see nothing come back empty. A run may be empty.
    """
    assert len(q) == sum(hi - lo for lo, hi in q_spans), (len(q), q_spans)
    spans = tuple((first, first + len(k)) for k, _, first in kv_runs)
    calls = plan_calls(tuple((lo, hi) for lo, hi in q_spans), spans, _square_tokens(q, kv_runs))
    total = _Total(q)
    folded = _fold(q, kv_runs[0][0].shape[1]) if calls else q
    for call in calls:
        _run_call(call, q, folded, kv_runs, scale, total)
    return total.state()


def attend_decode(q: Tensor, kv_pairs: Sequence[KvPair], scale: float) -> TorchState:
    """Attend one token's q [1, Hq, d] to all tokens of every pair (k, v), each [S, Hkv, d]; order does not matter.

    Pass memory that lies together as one pair, whatever its positions: each pair costs a call or a copy.
    """
    pairs = [(k, v) for k, v in kv_pairs if len(k)]
    if len(pairs) == 1:
        return _attend_decode_once(q, *pairs[0], scale)
    total = _Total(q)
    folded = _fold(q, pairs[0][0].shape[1]) if pairs else q
    for k, v in _copy_short_runs(pairs, len(q)):
        total.add(0, len(q), *_unfold(*_unmasked(folded, k, v, scale), len(q)))
    return total.state()


def _attend_decode_once(q: Tensor, k: Tensor, v: Tensor, scale: float) -> TorchState:
    """Attend one token to one run, the usual case: its query heads are folded as they lie."""
    out, lse = _unmasked(q.reshape(k.shape[1], -1, q.shape[2]), k, v, scale)
    return TorchState(lse=lse.reshape(q.shape[:2]), out=out.reshape(q.shape).float())


def _run_call(call: Call, q: Tensor, folded: Tensor, kv_runs: Sequence[KvRun], scale: float, total: _Total) -> None:
    lo, hi = call.row_lo, call.row_hi
    pairs = [(kv_runs[run][0][first:last], kv_runs[run][1][first:last]) for run, first, last in call.keys]
    group = folded.shape[1] // len(q)
    if call.square:
        total.add(lo, hi, *_causal_squares(q[lo:hi], *pairs[0], call.square, scale))
        return
    for k, v in _copy_short_runs(pairs, hi - lo):
        total.add(lo, hi, *_unfold(*_unmasked(folded[:, lo * group : hi * group], k, v, scale), hi - lo))


def _copy_short_runs(pairs: Sequence[KvPair], num_rows: int) -> Iterator[KvPair]:
    """Yield long pairs as they are and short ones copied together.

    Copying a token costs 2 * Hkv * d moves, a merge T * Hq * d: below `4 * num_rows` tokens the copy is cheaper.
    """
    limit = min(max(_BLOCK_TOKENS, 4 * num_rows), _COPY_TOKENS)
    waiting: list[KvPair] = []
    num_waiting = 0
    for k, v in pairs:
        if len(k) >= limit:
            yield k, v
            continue
        if num_waiting + len(k) > _COPY_TOKENS:
            yield _concat(waiting)
            waiting, num_waiting = [], 0
        waiting.append((k, v))
        num_waiting += len(k)
    if waiting:
        yield _concat(waiting)


def _concat(pairs: Sequence[KvPair]) -> KvPair:
    if len(pairs) == 1:
        return pairs[0]
    return torch.cat([k for k, _ in pairs]), torch.cat([v for _, v in pairs])


def _fold(q: Tensor, num_kv_heads: int) -> Tensor:
    """Return q [T, Hq, d] as [Hkv, T * G, d]: row t * G + g is query head g of the group at row t."""
    num_rows, num_q_heads, head_dim = q.shape
    grouped = q.reshape(num_rows, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    return grouped.transpose(0, 1).reshape(num_kv_heads, -1, head_dim)


def _unfold(out: Tensor, lse: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Undo `_fold` on out [Hkv, R * G, d] and lse [Hkv, R * G]: [R, Hq, d] and [R, Hq]."""
    num_kv_heads, _, head_dim = out.shape
    rows = out.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, -1, head_dim)
    return rows, lse.reshape(num_kv_heads, num_rows, -1).transpose(0, 1).reshape(num_rows, -1)


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Call the fused kernel: q [B, H, T, d], k and v [B, Hkv, S, d] -> out [B, H, T, d], lse [B, H, T] float32."""
    assert 0 not in (q.shape[2], k.shape[2]), (q.shape, k.shape)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)
    return out, lse


def _square_tokens(q: Tensor, kv_runs: Sequence[KvRun]) -> int:
    """The largest causal square to ask for: large ones where they take products of matrices."""
    num_tokens = min(len(q), bf16.SQUARE_TOKENS)
    group = q.shape[1] // kv_runs[0][0].shape[1] if kv_runs else 1
    return bf16.SQUARE_TOKENS if bf16.is_fast(q.dtype, num_tokens * group, num_tokens) else SQUARE_TOKENS


def _causal_squares(q: Tensor, k: Tensor, v: Tensor, square: int, scale: float) -> tuple[Tensor, Tensor]:
    """Attend q [n, Hq, d] to k and v [n, Hkv, d], each block of `square` tokens to itself -> [n, Hq, d], [n, Hq]."""
    if bf16.is_fast(q.dtype, square * (q.shape[1] // k.shape[1]), square):
        cuts = [slice(lo, lo + square) for lo in range(0, len(q), square)]
        parts = [_large_square(q[cut], k[cut], v[cut], scale) for cut in cuts]
        return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])
    q, k, v = (x.view(-1, square, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
    out, lse = _flash(q, k, v, True, scale)
    return out.transpose(1, 2).flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)


def _large_square(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    found = bf16.attend_square(_fold(q, k.shape[1]), k, v, scale)
    if found is None:
        heads_first = [x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)]
        out, lse = _flash(heads_first[0], heads_first[1], heads_first[2], True, scale)
        return out[0].transpose(0, 1), lse[0].transpose(0, 1)
    return _unfold(*found, len(q))


def _unmasked(folded: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend folded q [Hkv, R * G, d] to all of k and v [S, Hkv, d] -> out [Hkv, R * G, d], lse [Hkv, R * G]."""
    if folded.shape[1] <= _FEW_ROWS and len(k) >= _LONG_TOKENS:
        return _unmasked_in_blocks(folded, k, v, scale)
    if bf16.is_fast(folded.dtype, folded.shape[1], len(k)) and (found := bf16.attend(folded, k, v, scale)):
        return found
    out, lse = _flash_batch(folded, k.unsqueeze(0), v.unsqueeze(0), scale)
    return out[0], lse[0]


def _unmasked_in_blocks(folded: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Do what `_unmasked` does as a batch of blocks of keys, and the rest, merged at the end."""
    whole = len(k) - len(k) % _BLOCK_TOKENS
    k_blocks, v_blocks = (x[:whole].view(-1, _BLOCK_TOKENS, *x.shape[1:]) for x in (k, v))
    outs, lses = _flash_batch(folded, k_blocks, v_blocks, scale)
    if whole < len(k):
        out, lse = _flash_batch(folded, k[whole:].unsqueeze(0), v[whole:].unsqueeze(0), scale)
        outs, lses = torch.cat([outs, out]), torch.cat([lses, lse])
    top = lses.amax(0)
    weights = torch.exp(lses - top)
    total = weights.sum(0)
    out = torch.einsum("bhr,bhrd->hrd", weights, outs.float())
    return out.div_(total.unsqueeze(-1)), top + total.log()


def _flash_batch(folded: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Attend folded q [Hkv, r, d] to each block of k and v [B, n, Hkv, d] -> out [B, Hkv, r, d], lse [B, Hkv, r].

    A single row in bfloat16 makes the kernel's matrix products 4 to 10 times slower: it is passed twice (copied: a
    stride of zero is as slow).
    """
    num_rows = folded.shape[1]
    if num_rows == 1 and folded.dtype is not torch.float32:
        folded = folded.repeat(1, 2, 1)
    q = folded.expand(len(k), -1, -1, -1)
    out, lse = _flash(q, k.transpose(1, 2), v.transpose(1, 2), False, scale)
    return out[:, :, :num_rows], lse[:, :, :num_rows]
