"""Keys and values in the memory of a whole node: pages of 64 tokens of a KV head, each half a tile, and where they lie.

A page holds the beats that the tokens have in a tile (`mcf.rtl.golden.tiles`), port behind port: keys lie in two ports,
128 beats each (beat j: dimension j of 32 tokens), values in all four, 64 beats each (beat t: 32 dimensions of token t);
then the scales, two beats of each port. So a page travels as it lies, and half tiles become tiles by copying runs.
Nodes have the same map: a page's address says its layer, KV head, half and tokens, whether the node holds them or not.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mcf.rtl.decode import ROW_BYTES
from mcf.rtl.golden.attention import ROWS
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS
from mcf.schedule.meta import ScheduleMeta
from mcf.schedule.packets import BLOCK_TOKENS

HEAD_DIM = ROWS
SCALE_BYTES = 2
PAGE_BYTES = BLOCK_TOKENS * (HEAD_DIM // 2 + SCALE_BYTES)
_LANES = 32  # numbers of a port in a beat
_SCALES = BEAT_BYTES // SCALE_BYTES  # of a port in a beat
_SPOILT = -8, (1 << 16) - 1  # number and scale where nothing is held: no quantised number is -8

Ints = NDArray[np.int64]


def pack_page(numbers: Ints, scales: Ints, *, half: int) -> bytes:
    """The bytes of a page: `numbers` [64, 128] in -8..7 and `scales` [64] of 16 bits; `half` 0 is keys, 1 values."""
    beats = numbers if half else numbers.T
    ports = beats.reshape(len(beats), -1, _LANES).transpose(1, 0, 2)
    nibbles = (ports & 15).astype(np.uint8)
    return (nibbles[..., 0::2] | nibbles[..., 1::2] << 4).tobytes() + _swapped(scales, 2, NUM_PORTS)


def unpack_page(data: bytes, *, half: int) -> tuple[Ints, Ints]:
    """The numbers and scales that `pack_page` wrote."""
    cut = BLOCK_TOKENS * HEAD_DIM // 2
    packed = np.frombuffer(data[:cut], np.uint8)
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.int64)
    beats = HEAD_DIM if not half else BLOCK_TOKENS
    numbers = ((nibbles ^ 8) - 8).reshape(-1, beats, _LANES).transpose(1, 0, 2).reshape(beats, -1)
    scales = np.frombuffer(_swapped(np.frombuffer(data[cut:PAGE_BYTES], "<u2"), NUM_PORTS, 2), "<u2")
    return (numbers if half else numbers.T), scales.astype(np.int64)


def _swapped(scales: NDArray[np.generic], outer: int, inner: int) -> bytes:
    return scales.astype("<u2").reshape(outer, inner, _SCALES).transpose(1, 0, 2).tobytes()


def spoilt(num_tokens: int) -> tuple[Ints, Ints]:
    """Numbers and scales where a copy was given up: whoever still reads them shows."""
    number, scale = _SPOILT
    return np.full((num_tokens, HEAD_DIM), number), np.full(num_tokens, scale)


@dataclass(frozen=True, kw_only=True)
class PageMap:
    """Addresses of pages in every node's memory of `size_bytes`, for prompt and generated tokens together."""

    meta: ScheduleMeta
    size_bytes: int

    @property
    def num_blocks(self) -> int:
        """Blocks of 64 tokens."""
        return -(-(self.meta.prompt_tokens + self.meta.max_new_tokens) // BLOCK_TOKENS)

    def page(self, layer: int, head: int, half: int, block: int) -> int:
        """Where a page lies."""
        number = ((layer * self.meta.num_kv_heads + head) * 2 + half) * self.num_blocks + block
        return number * PAGE_BYTES

    @property
    def end(self) -> int:
        """The first row of memory behind all pages."""
        last = self.page(self.meta.num_layers, 0, 0, 0)
        return -(-last // ROW_BYTES) * ROW_BYTES

    @property
    def work(self) -> range:
        """What the rows at work have: tiles and queries."""
        return range((self.end + self.size_bytes) // 2 // ROW_BYTES * ROW_BYTES, self.size_bytes)
