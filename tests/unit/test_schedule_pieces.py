"""Pieces cover a prompt exactly, shares stay within one token, head-tail pairs balance causal work."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.schedule import contiguous, cut, head_tail
from mcf.schedule.pieces import Cutter, chunk_shares, share_out

CUTTERS = st.sampled_from((contiguous, head_tail))
SIZES = {"prompt_tokens": st.integers(1, 200), "chunk_tokens": st.integers(1, 70), "num_nodes": st.integers(1, 9)}


@given(cutter=CUTTERS, **SIZES)
def test_pieces_cover_every_token_once(prompt_tokens: int, chunk_tokens: int, num_nodes: int, cutter: Cutter) -> None:
    pieces = cut(prompt_tokens, chunk_tokens, num_nodes, cutter)
    times = np.zeros(prompt_tokens, dtype=int)
    for chunk, node, lo, hi in pieces.tolist():
        assert chunk * chunk_tokens <= lo < hi <= min((chunk + 1) * chunk_tokens, prompt_tokens)
        assert 0 <= node < num_nodes
        times[lo:hi] += 1
    assert (times == 1).all()
    assert pieces.tolist() == sorted(pieces.tolist())


@given(cutter=CUTTERS, **SIZES)
def test_shares_stay_within_one_token(prompt_tokens: int, chunk_tokens: int, num_nodes: int, cutter: Cutter) -> None:
    pieces = cut(prompt_tokens, chunk_tokens, num_nodes, cutter)
    totals = np.bincount(pieces["node"], weights=pieces["hi"] - pieces["lo"], minlength=num_nodes)
    assert totals.max() - totals.min() <= 1
    for _, _, shares in chunk_shares(prompt_tokens, chunk_tokens, num_nodes):
        assert max(shares) - min(shares) <= 1


@given(**SIZES)
def test_at_most_one_span_or_two_per_node(prompt_tokens: int, chunk_tokens: int, num_nodes: int) -> None:
    for cutter, most in ((contiguous, 1), (head_tail, 2)):
        pieces = cut(prompt_tokens, chunk_tokens, num_nodes, cutter)
        _, counts = np.unique(pieces[["chunk", "node"]], return_counts=True)
        assert counts.max() <= most
        assert not spans_that_touch(pieces.tolist())


def spans_that_touch(pieces: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Two pieces of one node in one chunk that should have been one."""
    return [a for a, b in pairwise(pieces) if a[:2] == b[:2] and a[3] == b[2]]


@given(num_nodes=st.integers(1, 9), share=st.integers(1, 40), lo=st.integers(0, 1000))
def test_head_tail_pairs_balance_causal_work(num_nodes: int, share: int, lo: int) -> None:
    hi = lo + share * num_nodes
    pieces = head_tail(lo, hi, [share] * num_nodes)
    work = [sum(sum(range(a - lo + 1, b - lo + 1)) for a, b in spans) for spans in pieces]
    assert max(work) - min(work) <= hi - lo


def test_contiguous_pieces_do_not_balance() -> None:
    work = [sum(range(a + 1, b + 1)) for [(a, b)] in contiguous(0, 64, [16] * 4)]
    assert work == [136, 392, 648, 904]


@pytest.mark.parametrize(
    ("num_tokens", "num_nodes", "first", "expected"),
    [(8, 4, 0, [2, 2, 2, 2]), (6, 4, 3, [2, 1, 1, 2]), (3, 4, 2, [1, 0, 1, 1]), (0, 2, 0, [0, 0]), (5, 1, 0, [5])],
)
def test_share_out(num_tokens: int, num_nodes: int, first: int, expected: list[int]) -> None:
    assert share_out(num_tokens, num_nodes, first) == expected


def test_remainders_rotate() -> None:
    shares = [s for _, _, s in chunk_shares(15, 5, 3)]
    assert shares == [[2, 2, 1], [2, 1, 2], [1, 2, 2]]


def test_head_tail_spans() -> None:
    assert head_tail(0, 9, [4, 3, 2]) == [[(0, 2), (7, 9)], [(2, 4), (6, 7)], [(4, 6)]]
    assert head_tail(10, 12, [1, 0, 1]) == [[(10, 11)], [], [(11, 12)]]
