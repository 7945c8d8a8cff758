"""How matrices, keys and values lie in memory: tiles of wide beats, each of the four ports with its own run.

A tile is 4 wide beats of scales (128 unsigned numbers of 16 bits) and up to 128 wide beats of INT4. Of a wide beat of
512 bits port p has bits 128p..128p + 127, that is rows (or tokens) 32p..32p + 31. A port's run holds its part of tile
after tile, 16 bytes per beat.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from mcf.rtl.golden.gemv import GROUP, ROWS, WEIGHT_BITS, WIDE_BITS
from mcf.rtl.golden.scale_acc import SCALE_BITS

NUM_PORTS = 4
BEAT_BYTES = 16
PORT_BITS = WIDE_BITS // NUM_PORTS
SCALE_BEATS = ROWS * SCALE_BITS // WIDE_BITS
TILE_BEATS = SCALE_BEATS + GROUP

Ints = NDArray[np.int64]


def tile(numbers: Ints, scales: Ints) -> list[int]:
    """The wide beats of a tile: `numbers` [rows, columns] in -8..7, `scales` [rows]; zeros fill up 128 rows."""
    assert numbers.shape[0] == len(scales) <= ROWS, numbers.shape
    assert numbers.shape[1] <= GROUP, numbers.shape
    assert ((numbers >= -8) & (numbers <= 7)).all()
    assert ((scales >= 0) & (scales < 1 << SCALE_BITS)).all()
    per_beat = WIDE_BITS // SCALE_BITS
    padded = [*map(int, scales), *[0] * (ROWS - len(scales))]
    heads = [_joined(padded[i : i + per_beat], SCALE_BITS) for i in range(0, ROWS, per_beat)]
    return heads + [_joined(map(int, column), WEIGHT_BITS) for column in numbers.T]


def matrix_tiles(weights: Ints, scales: Ints) -> list[int]:
    """The wide beats of a matrix, `weights` [R, C] with `scales` [R, C / 128]: row tiles, in each its column groups."""
    assert weights.shape[1] == scales.shape[1] * GROUP, (weights.shape, scales.shape)
    return [
        beat
        for row in range(0, len(weights), ROWS)
        for group in range(scales.shape[1])
        for beat in tile(weights[row : row + ROWS, group * GROUP :][:, :GROUP], scales[row : row + ROWS, group])
    ]


def key_tiles(keys: Ints, scales: Ints) -> list[int]:
    """The wide beats of `keys` [T, d]: in a tile of 128 tokens a beat per dimension; `scales` [T]."""
    return [beat for at in range(0, len(keys), ROWS) for beat in tile(keys[at : at + ROWS], scales[at : at + ROWS])]


def value_tiles(values: Ints, scales: Ints) -> list[int]:
    """The wide beats of `values` [T, d]: in a tile a beat per token, always 128; `scales` [T]."""
    beats: list[int] = []
    for at in range(0, len(values), ROWS):
        here = values[at : at + ROWS]
        full = np.zeros((GROUP, ROWS), dtype=np.int64)
        full[: len(here), : here.shape[1]] = here
        held = np.pad(scales[at : at + ROWS], (0, ROWS - len(here)))
        beats += tile(full.T, held)
    return beats


def port_runs(beats: Iterable[int]) -> list[bytes]:
    """Each port's run of wide beats."""
    held = list(beats)
    mask = (1 << PORT_BITS) - 1
    return [
        b"".join((beat >> PORT_BITS * port & mask).to_bytes(BEAT_BYTES, "little") for beat in held)
        for port in range(NUM_PORTS)
    ]


def read_tile(runs: Sequence[bytes]) -> tuple[Ints, Ints]:
    """A tile's numbers [128, columns] and scales [128], from the four ports' bytes of it."""
    ports = np.stack([np.frombuffer(run, dtype=np.uint8).reshape(-1, BEAT_BYTES) for run in runs], axis=1)
    wide = ports.reshape(len(ports), WIDE_BITS // 8)
    scales = wide[:SCALE_BEATS].reshape(-1).view("<u2").astype(np.int64)
    nibbles = np.stack([wide[SCALE_BEATS:] & 15, wide[SCALE_BEATS:] >> 4], axis=2).reshape(-1, ROWS).astype(np.int64)
    return np.where(nibbles > 7, nibbles - 16, nibbles).T, scales


def _joined(numbers: Iterable[int], width: int) -> int:
    word = 0
    for index, number in enumerate(numbers):
        word |= (number & (1 << width) - 1) << width * index
    return word
