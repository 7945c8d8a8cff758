"""The partial attention state in torch: normalised output and log-sum-exp, its merge law and its wire form.

T query rows, Hq query heads, d head size; float32 throughout. An empty row holds lse -inf and output 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

STATE_EXTRA = 2  # max and sum travel beside the d outputs of each row and head
_FLOOR = torch.finfo(torch.float32).min  # a finite stand-in for a maximum of -inf: exp(-inf - floor) is 0, not NaN


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchState:
    """Attention of T rows over some of their keys: `out` [T, Hq, d] normalised, `lse` [T, Hq] its log-sum-exp."""

    lse: Tensor
    out: Tensor

    def __post_init__(self) -> None:
        assert self.lse.shape == self.out.shape[:2], (self.lse.shape, self.out.shape)

    @property
    def is_empty(self) -> Tensor:
        """True [T, Hq] where a row has seen no key."""
        return torch.isneginf(self.lse)


def empty_state(num_rows: int, num_q_heads: int, head_dim: int) -> TorchState:
    """Return the state of rows that have seen nothing: the neutral element of `merge_states`."""
    shape = (num_rows, num_q_heads)
    return TorchState(lse=torch.full(shape, -torch.inf), out=torch.zeros(*shape, head_dim))


def merge_states(states: Sequence[TorchState]) -> TorchState:
    """Merge partial states of the same rows over disjoint keys, summed in the order given. Needs at least one.

    All weights are relative to the largest log-sum-exp, so no difference between the states can overflow; an empty
    row's output is selected away, whatever it holds.
    """
    assert states, "merge_states needs at least one state"
    if len(states) == 1:
        return states[0]
    lse = torch.stack([state.lse for state in states])
    top = lse.amax(0)
    weights = torch.exp(lse - top.clamp_min(_FLOOR)).unsqueeze(-1)
    total = weights.sum(0)
    out = _live_out(states[0]) * weights[0]
    for state, weight in zip(states[1:], weights[1:], strict=True):
        out.addcmul_(_live_out(state), weight)
    return TorchState(lse=top + total.squeeze(-1).log(), out=out.div_(total.clamp_min(1.0)))


def _live_out(state: TorchState) -> Tensor:
    blank = state.is_empty
    return state.out.masked_fill(blank.unsqueeze(-1), 0.0) if bool(blank.any()) else state.out


def finish(state: TorchState, dtype: torch.dtype) -> Tensor:
    """Return the attention output [T, Hq, d] in `dtype`; rows that saw nothing give zeros."""
    return _live_out(state).to(dtype)


def pack_state(state: TorchState, into: Tensor | None = None) -> Tensor:
    """Return the wire form [T, Hq, d + 2] float32: max (the lse), sum (1, or 0 when empty), output.

    It holds as many elements as the numpy state of the reference. `into` is filled instead of a new tensor.
    """
    num_rows, num_q_heads, head_dim = state.out.shape
    packed = torch.empty(num_rows, num_q_heads, head_dim + STATE_EXTRA) if into is None else into
    sums = (~state.is_empty).unsqueeze(-1).float()
    return torch.cat([state.lse.unsqueeze(-1), sums, _live_out(state)], -1, out=packed)


def unpack_state(packed: Tensor) -> TorchState:
    """Return the state that `pack_state` packed; its output is a view of `packed`."""
    return TorchState(lse=packed[..., 0] + packed[..., 1].log(), out=packed[..., STATE_EXTRA:])
