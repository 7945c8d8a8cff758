"""What a random schedule is made of: its sizes, and what may occur in it."""

from dataclasses import dataclass
from random import Random

import numpy as np

from mcf.schedule import contiguous, head_tail
from mcf.schedule.builder import Range
from mcf.schedule.pieces import PIECE, share_out
from mcf.schedule.schedule import Array

Cell = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a random schedule is made of; `seed` draws the rest.

    With `relay_late`, trees may relay streams that are not ahead: legal, but as plain sends (`unicast`) their finite
    slots may dead-lock, and `verify` then says so.
    """

    num_nodes: int = 3
    prompt_tokens: int = 23
    chunk_tokens: int = 9
    num_layers: int = 2
    num_kv_heads: int = 2
    group_heads: int = 2
    head_dim: int = 4
    page_tokens: int = 4
    stream_slots: int = 2
    max_new_tokens: int = 0
    topology: str = "switch"
    head_cuts: tuple[int, ...] = ()
    even: bool = True
    hand_over: bool = False
    multicast: bool = True
    relay_late: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A rectangle of blocks and the cells in it that have tokens."""

    chunks: Range
    makers: Range
    heads: Range
    cells: frozenset[Cell]


def random_pieces(recipe: Recipe, rng: Random) -> Array:
    """Cut a prompt: even shares with rotating remainders, or any shares at all, some of them empty."""
    rows, first = [], 0
    for chunk, lo in enumerate(range(0, recipe.prompt_tokens, recipe.chunk_tokens)):
        hi = min(lo + recipe.chunk_tokens, recipe.prompt_tokens)
        shares = share_out(hi - lo, recipe.num_nodes, first)
        first = (first + hi - lo) % recipe.num_nodes
        if not recipe.even:
            cuts = sorted(rng.randint(0, hi - lo) for _ in range(recipe.num_nodes - 1))
            shares = [b - a for a, b in zip([0, *cuts], [*cuts, hi - lo], strict=True)]
        cutter = rng.choice((contiguous, head_tail))
        rows += [(chunk, n, *span) for n, spans in enumerate(cutter(lo, hi, shares)) for span in spans]
    return np.array(rows, dtype=PIECE)
