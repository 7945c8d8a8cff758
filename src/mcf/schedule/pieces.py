"""Cutting a prompt into chunks, and chunks into pieces (contiguous token spans, each computed by one node)."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

PIECE = np.dtype([("chunk", "<i4"), ("node", "<i4"), ("lo", "<i4"), ("hi", "<i4")])

Span = tuple[int, int]
Cutter = Callable[[int, int, list[int]], list[list[Span]]]


def contiguous(lo: int, hi: int, shares: list[int]) -> list[list[Span]]:
    """One span per node, in node order."""
    out: list[list[Span]] = []
    for share in shares:
        out.append([(lo, lo + share)] if share else [])
        lo += share
    assert lo == hi
    return out


def head_tail(lo: int, hi: int, shares: list[int]) -> list[list[Span]]:
    """Two spans per node, piece n and piece 2N-1-n: each node does the same causal work (to within a token's)."""
    out: list[list[Span]] = [[] for _ in shares]
    for node, share in enumerate(shares):
        size = share - share // 2
        if size:
            out[node].append((lo, lo + size))
        lo += size
    for node in reversed(range(len(shares))):
        size = shares[node] // 2
        if not size:
            continue
        if out[node][-1][1] == lo:
            out[node][-1] = (out[node][-1][0], lo + size)
        else:
            out[node].append((lo, lo + size))
        lo += size
    assert lo == hi
    return out


def share_out(num_tokens: int, num_nodes: int, first: int) -> list[int]:
    """Split tokens evenly; the remainder goes one token each to nodes `first`, `first + 1`, ... (mod N)."""
    base, rest = divmod(num_tokens, num_nodes)
    shares = [base] * num_nodes
    for i in range(rest):
        shares[(first + i) % num_nodes] += 1
    return shares


def chunk_shares(prompt_tokens: int, chunk_tokens: int, num_nodes: int) -> Iterator[tuple[int, int, list[int]]]:
    """Yield (lo, hi, tokens per node) for each chunk; remainders rotate, so that shares never drift."""
    first = 0
    for lo in range(0, prompt_tokens, chunk_tokens):
        hi = min(lo + chunk_tokens, prompt_tokens)
        yield lo, hi, share_out(hi - lo, num_nodes, first)
        first = (first + (hi - lo) % num_nodes) % num_nodes


def cut(prompt_tokens: int, chunk_tokens: int, num_nodes: int, cutter: Cutter) -> NDArray[np.void]:
    """Cut a whole prompt: PIECE records sorted by (chunk, node, lo)."""
    rows = [
        (chunk, node, *span)
        for chunk, (lo, hi, shares) in enumerate(chunk_shares(prompt_tokens, chunk_tokens, num_nodes))
        for node, spans in enumerate(cutter(lo, hi, shares))
        for span in spans
    ]
    return np.array(rows, dtype=PIECE)
