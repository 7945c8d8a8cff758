"""Attention states in block floating point, and their merge by shift and add, bit for bit as the hardware does it.

A state is `(exponent, sum, out)`: the real numbers are sum * 2^exponent and out * 2^exponent. The reference of an
online softmax may be any number that sum and output share; a power of two makes the merge a shift. `sum` is a
positive mantissa in [2^14, 2^15), `out` signed 16 bit with |out| <= sum, because values are scaled into [-1, 1]. An
empty state has sum 0 and EMPTY_EXPONENT. While states meet, 4 guard bits and 4 bits of head room stand around the 16:
24-bit accumulators.
Arrays have any leading shape [...]; d is the head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.attn.state import PartialState
from mcf.errors import UserError
from mcf.schedule.wire import ReduceOp

MANTISSA_BITS = 15  # of a sum; an output has a sign bit beside them
GUARD_BITS = 4
HEADROOM_BITS = 4
MAX_CHILDREN = 1 << HEADROOM_BITS
ACCUMULATOR_BITS = 1 + MANTISSA_BITS + GUARD_BITS + HEADROOM_BITS
MAX_SHIFT = 31  # a shift by more says the same: nothing of the smaller state is left
MAX_EXPONENT = 1 << 14  # so that the difference of two fits 16 bits
EMPTY_EXPONENT = -MAX_EXPONENT
LARGEST = (1 << MANTISSA_BITS) - 1

LANES = 8  # numbers in a beat
NUMBER_BITS = 16
STATE_FIELDS = (("sum", 16), ("exponent", 16), ("count", 16), ("child", 4))  # a record's first beat, from bit 0 on

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockState:
    """States: `exponent`, `sum_`, `count` [...], `out` [..., d], all int64; `count` is how many states were merged."""

    exponent: Ints
    sum_: Ints
    out: Ints
    count: Ints

    def __post_init__(self) -> None:
        assert self.exponent.shape == self.sum_.shape == self.count.shape == self.out.shape[:-1], self.out.shape


def encode(state: PartialState, v_scale: float) -> BlockState:
    """Round the states of rows [T, Hq] into block floating point; `v_scale` is at least the largest |value|.

    Raises UserError for what is not finite, for a value beyond `v_scale`, and for an exponent that does not fit.
    """
    live = ~state.is_empty
    sums = np.where(live, state.sum_, 1).astype(np.float64)
    log2 = np.where(live, state.max_, 0) / np.log(2) + np.log2(sums)
    exponent = np.floor(log2).astype(np.int64) - (MANTISSA_BITS - 1) if np.isfinite(log2).all() else None
    ratio = np.where(live[..., None], state.out, 0) / (sums[..., None] * v_scale)
    if exponent is None or not np.isfinite(ratio).all():
        raise UserError("got a state that is not finite: expected finite scores and values")
    if (np.abs(exponent) >= MAX_EXPONENT).any():
        raise UserError(f"got scores up to {np.abs(log2).max():.0f} in base 2: expected less than {MAX_EXPONENT}")
    if (np.abs(ratio) > 1 + 2.0**-MANTISSA_BITS).any():
        raise UserError(f"got a value of {np.abs(ratio).max() * v_scale:g}: expected at most v_scale = {v_scale:g}")
    mantissa = np.exp2(log2 - exponent)
    sum_ = np.rint(mantissa).astype(np.int64).clip(max=LARGEST)
    out = np.rint(ratio * mantissa[..., None]).astype(np.int64)
    out = np.clip(out, -sum_[..., None], sum_[..., None])
    return BlockState(
        exponent=np.where(live, exponent, EMPTY_EXPONENT),
        sum_=np.where(live, sum_, 0),
        out=np.where(live[..., None], out, 0),
        count=np.ones_like(exponent),
    )


def decode(state: BlockState, v_scale: float) -> PartialState:
    """Return the float64 state whose reference is the power of two; empty where the sum is 0."""
    live = state.sum_ > 0
    return PartialState(
        max_=np.where(live, state.exponent * np.log(2), -np.inf),
        sum_=np.where(live, state.sum_, 0).astype(np.float64),
        out=np.where(live[..., None], state.out * v_scale, 0.0),
    )


# --- the merge, in integers ---


@dataclass(frozen=True, kw_only=True, eq=False)
class Accumulator:
    """What a slot holds between arrivals: like a state, with GUARD_BITS more in `sum_` and `out`."""

    exponent: Ints
    sum_: Ints
    out: Ints
    count: Ints


def start(state: BlockState) -> Accumulator:
    """The accumulator after the first arrival."""
    return Accumulator(
        exponent=state.exponent, sum_=state.sum_ << GUARD_BITS, out=state.out << GUARD_BITS, count=state.count
    )


def add(acc: Accumulator, state: BlockState, op: ReduceOp = ReduceOp.MERGE) -> Accumulator:
    """The accumulator after one more arrival. MERGE and SUM align the exponents; MAX compares the bare numbers."""
    new = start(state)
    if op is ReduceOp.MAX:
        sum_, out = np.maximum(acc.sum_, new.sum_), np.maximum(acc.out, new.out)
    else:
        sum_ = _aligned(acc.sum_, new.sum_, new.exponent - acc.exponent)
        out = _aligned(acc.out, new.out, (new.exponent - acc.exponent)[..., None])
    count = acc.count + new.count & (1 << NUMBER_BITS) - 1
    return Accumulator(exponent=np.maximum(acc.exponent, new.exponent), sum_=sum_, out=out, count=count)


def finish(acc: Accumulator, op: ReduceOp = ReduceOp.MERGE) -> BlockState:
    """Round an accumulator back to 16 bits, saturating; after MERGE the sum is normalised again."""
    grown = np.zeros_like(acc.exponent)
    if op is ReduceOp.MERGE:
        for bit in range(1, HEADROOM_BITS + 1):
            grown = np.where(acc.sum_ >= 1 << MANTISSA_BITS + GUARD_BITS + bit - 1, bit, grown)
    shift = GUARD_BITS + grown
    return BlockState(
        exponent=acc.exponent + grown,
        sum_=half_up(acc.sum_, shift).clip(-LARGEST, LARGEST),
        out=half_up(acc.out, shift[..., None]).clip(-LARGEST, LARGEST),
        count=acc.count,
    )


def merge(states: Sequence[BlockState], op: ReduceOp = ReduceOp.MERGE) -> BlockState:
    """Merge 1 to MAX_CHILDREN states in the order given, with one rounding at the end.

    The order shows in the last bits: shifting is not associative. Raises UserError for another number of states.
    """
    if not 1 <= len(states) <= MAX_CHILDREN:
        raise UserError(f"got {len(states)} states for one slot: expected 1 to {MAX_CHILDREN}; reduce along a tree")
    acc = start(states[0])
    for state in states[1:]:
        acc = add(acc, state, op)
    return finish(acc, op)


def _aligned(held: Ints, new: Ints, lead: Any) -> Ints:
    shift = np.minimum(np.abs(lead), MAX_SHIFT)
    total: Ints = np.where(lead > 0, new, held) + half_up(np.where(lead > 0, held, new), shift)
    return total


def half_up(value: Any, shift: Any) -> Ints:
    """Shift right, rounded to the nearest, halves up; `shift` is 0 to 62."""
    rounded: Ints = (value + ((np.int64(1) << shift) >> 1)) >> shift
    return rounded


# --- the payload of a STATE packet ---


def num_payload_beats(head_dim: int) -> int:
    """Beats of a record: the state beat, then LANES outputs in each."""
    return 1 + -(-head_dim // LANES)


def to_beats(state: BlockState, child: int, num_out_beats: int) -> list[int]:
    """One state (leading shape ()) as payload beats of 128 bits; outputs beyond the head size are 0.

    `child` says which of its parent's children the sender is: a second packet of one child is dropped.
    """
    values = {"sum": int(state.sum_), "exponent": int(state.exponent), "count": int(state.count), "child": child}
    out = [int(number) for number in state.out] + [0] * (LANES * num_out_beats - len(state.out))
    lanes = [out[i : i + LANES] for i in range(0, len(out), LANES)]
    return [_join([(values[name], width) for name, width in STATE_FIELDS])] + [
        _join([(number, NUMBER_BITS) for number in beat]) for beat in lanes
    ]


def from_beats(beats: Sequence[int], head_dim: int) -> tuple[BlockState, int]:
    """Read a record back: the state, and the child that sent it."""
    fields, low = {}, 0
    for name, width in STATE_FIELDS:
        fields[name] = beats[0] >> low & (1 << width) - 1
        low += width
    numbers = [_signed(beat >> NUMBER_BITS * lane) for beat in beats[1:] for lane in range(LANES)]
    state = BlockState(
        exponent=np.array(_signed(fields["exponent"]), dtype=np.int64),
        sum_=np.array(_signed(fields["sum"]), dtype=np.int64),
        out=np.array(numbers[:head_dim], dtype=np.int64),
        count=np.array(fields["count"], dtype=np.int64),
    )
    return state, fields["child"]


def _join(parts: Sequence[tuple[int, int]]) -> int:
    word, low = 0, 0
    for value, width in parts:
        word |= (value & (1 << width) - 1) << low
        low += width
    return word


def _signed(bits: int) -> int:
    bits &= (1 << NUMBER_BITS) - 1
    return bits - (1 << NUMBER_BITS) if bits >> NUMBER_BITS - 1 else bits
