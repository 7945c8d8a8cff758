"""The end of prefill (eq. 29, corrected): every block on its owner, and nowhere else."""

from collections.abc import Collection


def surplus(*, holders: Collection[int], owner: int) -> list[int]:
    """Copies of a block that must drain once the last chunk is done (eq. 29: P_i = {owner_i})."""
    return sorted(set(holders) - {owner})


def is_converged(*, holders: Collection[int], owner: int) -> bool:
    """Say whether a block has reached r = 1: its owner holds it, and no other node does."""
    return set(holders) == {owner}
