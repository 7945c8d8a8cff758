"""Cut attention between position spans into the calls a kernel can make: plain Python, no tensors.

Query rows come in spans of positions, keys in runs of positions. Each pair is cut by position into four kinds: nothing
to see (no call), all to see (an unmasked call), a causal square (same positions on both sides, top-left aligned), and
the ragged rest, which falls apart into the former two. History is order-free, so all keys that the same rows fully see
share one call. A large square is cut again, into small squares along its diagonal and unmasked strips left of them: the
kernel computes a masked place at the cost of a visible one.
"""

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

Span = tuple[int, int]

SQUARE_TOKENS = 64  # measured (benchmarks/kernels): 512 tokens take 0.7 of one square's time; 32 and 128 are no better


class Keys(NamedTuple):
    """Tokens `lo:hi` (counted inside the run) of KV run `run`."""

    run: int
    lo: int
    hi: int


class Call(NamedTuple):
    """Query rows `row_lo:row_hi` against `keys`.

    With `square` 0 all is visible. Else rows and the one key slice have the same positions, cut into causal squares
    of `square` tokens each along the diagonal; a row sees nothing outside its square in this call.
    """

    row_lo: int
    row_hi: int
    square: int
    keys: tuple[Keys, ...]


class _Part(NamedTuple):
    row_lo: int
    row_hi: int
    square: int
    keys: Keys


@lru_cache(maxsize=1024)
def plan_calls(
    q_spans: tuple[Span, ...], kv_spans: tuple[Span, ...], square_tokens: int = SQUARE_TOKENS
) -> tuple[Call, ...]:
    """Return the kernel calls for query spans (rows concatenated in this order) over KV runs; spans are half-open.

    No causal square is larger than `square_tokens`. Cached: a model's layers ask the same question again and again.
    """
    full: defaultdict[Span, list[Keys]] = defaultdict(list)
    squares: list[Call] = []
    for run, span in enumerate(kv_spans):
        for part in _join(_cut_run(q_spans, run, span, square_tokens)):
            if part.square:
                squares.append(Call(part.row_lo, part.row_hi, part.square, (part.keys,)))
            else:
                _extend(full[part.row_lo, part.row_hi], part.keys)
    return (*(Call(lo, hi, 0, tuple(keys)) for (lo, hi), keys in full.items()), *squares)


def _extend(slices: list[Keys], keys: Keys) -> None:
    if slices and slices[-1].run == keys.run and slices[-1].hi == keys.lo:
        slices[-1] = Keys(keys.run, slices[-1].lo, keys.hi)
    else:
        slices.append(keys)


def _cut_run(q_spans: tuple[Span, ...], run: int, kv_span: Span, square: int) -> Iterator[_Part]:
    row = 0
    for lo, hi in q_spans:
        yield from _cut_pair((lo, hi), row, run, kv_span, square)
        row += hi - lo


def _cut_pair(q_span: Span, row: int, run: int, kv_span: Span, square: int) -> Iterator[_Part]:
    """Cut one pair into parts.

    Let first be the first position whose query sees a key, and last the end of the common positions. Keys kv_lo:first
    are history of all rows from first on; keys first:last are a square for rows first:last and history of the rows from
    last on.
    """
    q_lo, q_hi = q_span
    kv_lo, kv_hi = kv_span
    first, last = max(q_lo, kv_lo), min(q_hi, kv_hi)
    if kv_lo >= kv_hi or first >= q_hi:
        return
    row_first, row_end, row_last = row + first - q_lo, row + q_hi - q_lo, row + last - q_lo
    if kv_lo < min(first, kv_hi):
        yield _Part(row_first, row_end, 0, Keys(run, 0, min(first, kv_hi) - kv_lo))
    if first < last:
        yield from _cut_square(row_first, Keys(run, first - kv_lo, last - kv_lo), square)
        if row_last < row_end:
            yield _Part(row_last, row_end, 0, Keys(run, first - kv_lo, last - kv_lo))


def _cut_square(row: int, keys: Keys, square: int) -> Iterator[_Part]:
    """Cut a square whose first query is `row` into squares of `square` tokens and the strips left of them."""
    run, lo, hi = keys
    whole = (hi - lo) // square * square
    rest = hi - lo - whole
    if whole:
        yield _Part(row, row + whole, square, Keys(run, lo, lo + whole))
    if rest:
        yield _Part(row + whole, row + whole + rest, rest if rest > 1 else 0, Keys(run, lo + whole, hi))
    for at in range(square, hi - lo, square):
        yield _Part(row + at, row + min(at + square, hi - lo), 0, Keys(run, lo, lo + at))


def _join(parts: Iterator[_Part]) -> list[_Part]:
    """Join neighbouring rows that fully see the same keys."""
    joined: list[_Part] = []
    for part in sorted(parts, key=lambda part: (part.square, part.keys, part.row_lo)):
        last = joined[-1] if joined else None
        if last and not part.square and last.keys == part.keys and last.row_hi == part.row_lo:
            joined[-1] = last._replace(row_hi=part.row_hi)
        else:
            joined.append(part)
    return joined
