"""The attention of one shard, bit for bit as the compute half does it: tiles of 128 tokens, one query head at a time.

Keys and values are INT4 with a 16-bit scale for each token. For each tile: rows = partial * scale, rounded (ScaleAcc);
scores = rows * q_scale, in base 2 with 10 fractional bits; the tile's exponent E is the least integer that no score
exceeds; p = 2^(score - E) by a table of 2^-fraction and a shift, 16 bits; the sum of p is exact. The activations for V
are p * v_scale, brought by a power of two to where they sum up to 2^16..2^17: so none is wasted on a bound for each
single one, and partial sums of V stay within 22 bits. What a head has accumulated, `Head`, is a sum and 128 outputs of
36 bits in units of 2^(exponent - 19); a tile is added by shifting whichever has the smaller exponent.

The real numbers: a key is int4 * k_scale * 2^-x (x of the whole shard, folded into q_scale), a value is
int4 / 8 * v_scale / 2^16 * the shard's v_scale, so that |o| <= l as golden.state wants it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcf.errors import UserError
from mcf.rtl.golden.state import EMPTY_EXPONENT, LARGEST, MANTISSA_BITS, BlockState, half_up

ROWS = 128  # tokens of a tile, and outputs of a head
PARTIAL_BITS = 22
ROW_BITS = 32
ROW_SHIFT = 6  # of ScaleAcc for keys: whatever partial and scale are, the row then fits
SCORE_BITS = 24
FRACTION_BITS = 10  # of a score
BASE_SHIFT = 16  # a command's shift counts from here
WEIGHT_BITS = 15  # p = 2^15 stands for 1
SCALE_BITS = 16  # of a token's scale and of q_scale
MAX_DROP = 31  # p that is smaller by so many bits is 0
ACTIVATION_BITS = 17
PRODUCT_SHIFT = 21  # the most that the activations of a tile are shifted right
OUT_FRACTION = 19  # a head's sum and outputs count in 2^(exponent - 19)
HEAD_BITS = 36
SUM_GUARD = OUT_FRACTION - WEIGHT_BITS
PARTIAL_GUARD = PRODUCT_SHIFT + OUT_FRACTION - WEIGHT_BITS - SCALE_BITS - 3
MAX_TOKENS = (1 << HEAD_BITS - 1 - OUT_FRACTION) - 1  # of a head between two finishes
_FAR = 62

Ints = NDArray[np.int64]
TABLE: Ints = np.rint(2.0 ** (WEIGHT_BITS - np.arange(1 << FRACTION_BITS) / (1 << FRACTION_BITS))).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class TileSum:
    """What the softmax says of a tile beside its activations: `sum_` in 2^(exponent - 15), `shift` of activations."""

    exponent: int
    sum_: int
    shift: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """What a head has accumulated: `exponent`, `sum_`, `out` [128]. See the module's text."""

    exponent: int
    sum_: int
    out: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Shard:
    """Keys and values of one KV head: `k`, `v` [T, d] in -8..7 with d <= 128; `k_scale`, `v_scale` [T], 16 bits."""

    k: Ints
    v: Ints
    k_scale: Ints
    v_scale: Ints


@dataclass(frozen=True, kw_only=True, eq=False)
class Queries:
    """Query heads: `q` [H, d], `scale` [H] of 16 bits and `shift` [H]; a score is row * scale / 2^(16 + shift).

    The magnitudes of a head's q sum up to less than 2^18 (12 bits and a head of 128 always do).
    """

    q: Ints
    scale: Ints
    shift: Ints


def rows_of(partials: Ints, scales: Ints, shift: int = ROW_SHIFT) -> Ints:
    """ScaleAcc over one group: partial * scale / 2^shift, saturated to 32 bits."""
    return _saturated(half_up(partials * scales, shift), ROW_BITS)


def scores_of(rows: Ints, q_scale: int, shift: int) -> Ints:
    """Base-2 scores with 10 fractional bits, saturated to 24 bits."""
    return _saturated(half_up(rows * q_scale, BASE_SHIFT + shift), SCORE_BITS)


def soften(scores: Ints, v_scales: Ints) -> tuple[TileSum, Ints]:
    """The weights of a tile's valid tokens [1..128], summed and as activations for V."""
    exponent = -(-int(scores.max()) >> FRACTION_BITS)
    drop = (exponent << FRACTION_BITS) - scores
    weights = half_up(TABLE[drop & (1 << FRACTION_BITS) - 1], np.minimum(drop >> FRACTION_BITS, MAX_DROP))
    products = weights * v_scales
    shift = max(int(products.sum()).bit_length() - ACTIVATION_BITS, 0)
    activations = np.minimum(half_up(products, shift), (1 << ACTIVATION_BITS) - 1)
    return TileSum(exponent=exponent, sum_=int(weights.sum()), shift=shift), activations


def add_tile(head: Head | None, tile: TileSum, partials: Ints) -> Head:
    """The head with one more tile, whose partial sums of V are `partials` [128]; None is a head without tiles."""
    lead = 0 if head is None else tile.exponent - head.exponent
    late = min(max(-lead, 0), _FAR)
    sum_ = half_up(np.int64(tile.sum_) << SUM_GUARD, late)
    out = half_up(partials << PARTIAL_GUARD, min(PRODUCT_SHIFT - tile.shift + late, _FAR))
    if head is None:
        return Head(exponent=tile.exponent, sum_=int(sum_), out=out)
    early = min(max(lead, 0), _FAR)
    return Head(
        exponent=max(tile.exponent, head.exponent),
        sum_=int(half_up(np.int64(head.sum_), early) + sum_),
        out=half_up(head.out, early) + out,
    )


def record_of(head: Head | None) -> BlockState:
    """The state that leaves: 15 bits of the sum, outputs no larger than it; None gives the empty state."""
    if head is None:
        zero = np.zeros((), np.int64)
        return BlockState(exponent=zero + EMPTY_EXPONENT, sum_=zero, out=np.zeros(ROWS, np.int64), count=zero + 1)
    shift = max(head.sum_.bit_length() - MANTISSA_BITS, 0)
    sum_ = min(int(half_up(np.int64(head.sum_), shift)), LARGEST)
    return BlockState(
        exponent=np.asarray(head.exponent - OUT_FRACTION + shift, dtype=np.int64),
        sum_=np.asarray(sum_, dtype=np.int64),
        out=half_up(head.out, shift).clip(-sum_, sum_),
        count=np.ones((), np.int64),
    )


def attend_shard(shard: Shard, queries: Queries) -> list[BlockState]:
    """The state of each query head over all tokens of the shard; the outputs beyond the head size are 0.

    Raises UserError for more tokens than a head can accumulate, and for numbers that do not fit their bits.
    """
    _check(shard, queries)
    return [record_of(_attend(shard, queries, head)) for head in range(len(queries.q))]


def _attend(shard: Shard, queries: Queries, head: int) -> Head | None:
    total: Head | None = None
    values = np.pad(shard.v, ((0, 0), (0, ROWS - shard.v.shape[1])))
    for start in range(0, len(shard.k), ROWS):
        at = slice(start, start + ROWS)
        rows = rows_of(shard.k[at] @ queries.q[head], shard.k_scale[at])
        scores = scores_of(rows, int(queries.scale[head]), int(queries.shift[head]))
        tile, activations = soften(scores, shard.v_scale[at])
        total = add_tile(total, tile, activations @ values[at])
    return total


def _saturated(values: Ints, bits: int) -> Ints:
    clipped: Ints = values.clip(-1 << bits - 1, (1 << bits - 1) - 1)
    return clipped


def _check(shard: Shard, queries: Queries) -> None:
    num_tokens, head_dim = shard.k.shape
    assert shard.v.shape == shard.k.shape, shard.v.shape
    assert shard.k_scale.shape == shard.v_scale.shape == (num_tokens,), shard.k_scale.shape
    assert queries.q.shape[1] == head_dim, queries.q.shape
    if head_dim > ROWS:
        raise UserError(f"got heads of {head_dim}: expected at most {ROWS}")
    if num_tokens > MAX_TOKENS:
        raise UserError(f"got {num_tokens} tokens of one shard: expected at most {MAX_TOKENS}")
    for name, values, bits in (
        ("k_scale", shard.k_scale, 16),
        ("v_scale", shard.v_scale, 16),
        ("q_scale", queries.scale, 16),
        ("shift", queries.shift, 5),
    ):
        if values.size and not 0 <= values.min() <= values.max() < 1 << bits:
            raise UserError(f"got {name} from {values.min()} to {values.max()}: expected {bits} bits without a sign")
    if (np.abs(queries.q).sum(-1) >= 1 << 18).any():
        raise UserError(
            f"got a query whose magnitudes sum up to {np.abs(queries.q).sum(-1).max()}: expected less than 2^18"
        )
