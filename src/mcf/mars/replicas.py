"""How many copies of a block may live (eq. 9-12, 14-16), with the corrections of the design notes.

Chunks count c = 1..C. A block's factor r counts its owner: r = 1 is owner-only, r = N is a copy on every node.
"""

import math
from collections.abc import Collection, Sequence
from fractions import Fraction

from mcf.errors import InfeasibleError
from mcf.units import format_bytes

Alpha = float | Fraction


def M_node(*, M: Sequence[int], P: Sequence[Collection[int]], N: int) -> list[int]:
    """KV bytes on each node (eq. 9, corrected): the blocks i that it holds, M[i] bytes each, P[i] their nodes."""
    out = [0] * N
    for M_i, P_i in zip(M, P, strict=True):
        for n in set(P_i):
            out[n] += M_i
    return out


def most_over(M_node: Sequence[int], S_node: Sequence[int]) -> int:
    """Bytes by which the fullest node exceeds its budget, 0 if none does (eq. 10 and 27: the maximum, not the mean)."""
    return max(0, *(M_n - S_n for M_n, S_n in zip(M_node, S_node, strict=True)))


def r_mem(*, K: Sequence[int], M_hist: int) -> int:
    """Copies of everything so far that the budgets hold (eq. 11): floor(sum of K_n / M_hist).

    `K` are the nodes' bytes for blocks, slots and decode reserve taken off. Raises InfeasibleError where not even one
    copy fits: below 1 there is no layout at all.
    """
    factor = sum(K) // M_hist
    if factor < 1:
        missing = M_hist - sum(K)
        raise InfeasibleError(
            f"got {format_bytes(sum(K))} on {len(K)} nodes for {format_bytes(M_hist)} of KV: "
            f"expected at least one copy of every block; {format_bytes(missing)} are missing, so give each node "
            f"{format_bytes(-(-missing // len(K)))} more or use more nodes",
            missing_bytes=missing,
        )
    return factor


def r_feasible(*, N: int, r_mem: int) -> int:
    """The factor by memory alone (eq. 12); `r_mem` is at least 1, or it would have raised."""
    return min(N, r_mem)


def is_worth_copying(*, c: int, C: int, h_save: float, h_copy: float) -> bool:
    """Say whether the hops that later chunks save exceed those of the copy (eq. 14)."""
    return (C - c) * h_save > h_copy


def default_alpha(*, N: int, C: int) -> Fraction:
    """The paper-faithful aggressiveness: blocks of the first half may be on every node."""
    return Fraction(2 * (N - 1), C)


def r_reuse(*, c: int, C: int, N: int, alpha: Alpha) -> int:
    """The factor by reuse (eq. 15): max(1, min(N, 1 + floor(alpha (C - c)))); alpha = infinity turns it off."""
    if alpha == math.inf:
        return N
    return max(1, min(N, 1 + math.floor(alpha * (C - c))))


def r(*, N: int, r_mem: int, r_reuse: int, r_before: int | None = None) -> int:
    """The factor of one block at one chunk (eq. 16); never more than it was before, `r_before`."""
    factor = min(N, r_mem, r_reuse)
    return factor if r_before is None else min(factor, r_before)
