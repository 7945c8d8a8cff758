"""Convergence: every block on its owner and nowhere else when prefill ends (eq. 29, corrected), and the way there."""

from collections.abc import Collection
from fractions import Fraction


def surplus(*, holders: Collection[int], owner: int) -> list[int]:
    """Copies of a block that must drain once the last chunk is done (eq. 29: P_i = {owner_i})."""
    return sorted(set(holders) - {owner})


def is_converged(*, holders: Collection[int], owner: int) -> bool:
    """Say whether a block has reached r = 1: its owner holds it, and no other node does."""
    return set(holders) == {owner}


def still_held(*, c: int, C: int, W: int) -> Fraction:
    """Part of the copies that is still held in chunk c = 1..C when copies retire evenly over the last W chunks.

    1 before them, 1/(W + 1) in the last chunk, which leaves that much to drain after it. With W = 0 nothing retires
    early: a copy is held for as long as any chunk still reads it.

    >>> [str(still_held(c=c, C=8, W=3)) for c in range(4, 10)]
    ['1', '1', '3/4', '1/2', '1/4', '0']
    """
    return min(Fraction(1), Fraction(C + 1 - c, W + 1)) if W else Fraction(1)


def r_converge(*, c: int, C: int, N: int, W: int) -> int:
    """Most copies of a block in chunk c, the owner's among them, by the same ramp: N at first, 1 after chunk C."""
    return 1 + int((N - 1) * still_held(c=c, C=C, W=W))
