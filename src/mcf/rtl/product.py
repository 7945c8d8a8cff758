"""A product of random INT4 weights, for the rate at which a node streams them."""

import numpy as np

from mcf.rtl.commands import ComputeOp, pack_command
from mcf.rtl.decode import apart
from mcf.rtl.decode_image import runs_of
from mcf.rtl.golden.gemv import GROUP, ROWS
from mcf.rtl.golden.tiles import BEAT_BYTES

PRODUCT_SHIFT = 10  # whatever the rows are, most bits of them are kept


def random_product(rows: int, columns: int, *, set_event: int, seed: int = 0) -> tuple[bytearray, list[int]]:
    """A memory with a matrix of random INT4 weights, a vector, and room for rows; the commands to multiply them."""
    rng = np.random.default_rng(seed)
    row_tiles, groups = -(-rows // ROWS), -(-columns // GROUP)
    tiles = row_tiles * groups
    runs = runs_of(rng.integers(-8, 8, (tiles, GROUP, ROWS)), rng.integers(1 << 14, 1 << 16, tiles * ROWS))
    vector = rng.integers(-128, 128, groups * GROUP).astype("<i2").tobytes()
    stride = apart(len(runs[0]) // BEAT_BYTES)
    image = bytearray(b"".join(run.ljust(stride * BEAT_BYTES, b"\0") for run in runs) + vector)
    load = pack_command(ComputeOp.LOAD, address=len(image) - len(vector), count=len(vector) // BEAT_BYTES)
    multiply = pack_command(
        ComputeOp.GEMV,
        address=0,
        second=len(image),
        stride=len(runs[0]) // BEAT_BYTES,
        tiles=row_tiles,
        count=groups,
        vectors=1,
        columns=GROUP,
        shift=PRODUCT_SHIFT,
        set_event=set_event,
    )
    return image + bytes(row_tiles * ROWS * 4), [load, multiply]
