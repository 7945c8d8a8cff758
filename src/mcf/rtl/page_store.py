"""The pages of one whole node's memory, as its processor reads and writes them: software that takes no time."""

from collections.abc import Iterator

import numpy as np

from mcf.rtl.golden.attention import Shard
from mcf.rtl.mesh.ddr import Ddr
from mcf.rtl.pages import HEAD_DIM, PAGE_BYTES, Ints, PageMap, pack_page, spoilt, unpack_page
from mcf.schedule.packets import BLOCK_TOKENS


class PageStore:
    """Tokens of a KV head, by their positions."""

    def __init__(self, pages: PageMap, memory: Ddr) -> None:
        self.pages, self.memory = pages, memory

    def put(self, layer: int, head: int, half: int, block: int, data: bytes) -> None:
        """Store a page as it came."""
        assert len(data) == PAGE_BYTES, len(data)
        self.memory.write(self.pages.page(layer, head, half, block), data)

    def write(self, layer: int, head: int, positions: Ints, shard: Shard) -> None:
        """Store tokens where they belong."""
        for half, numbers, scales in ((0, shard.k, shard.k_scale), (1, shard.v, shard.v_scale)):
            for block, here in _by_block(positions):
                held, held_scales = self._page(layer, head, half, block)
                at = positions[here] % BLOCK_TOKENS
                held[at], held_scales[at] = numbers[here], scales[here]
                self.put(layer, head, half, block, pack_page(held, held_scales, half=half))

    def spoil(self, layer: int, head: int, positions: Ints) -> None:
        """Overwrite tokens that are held no longer."""
        numbers, scales = spoilt(len(positions))
        self.write(layer, head, positions, Shard(k=numbers, v=numbers, k_scale=scales, v_scale=scales))

    def read(self, layer: int, head: int, positions: Ints) -> Shard:
        """Copy tokens out of their pages, in the order given."""
        parts = []
        for half in range(2):
            numbers, scales = np.zeros((len(positions), HEAD_DIM), np.int64), np.zeros(len(positions), np.int64)
            for block, here in _by_block(positions):
                held, held_scales = self._page(layer, head, half, block)
                at = positions[here] % BLOCK_TOKENS
                numbers[here], scales[here] = held[at], held_scales[at]
            parts += [numbers, scales]
        k, k_scale, v, v_scale = parts
        return Shard(k=k, v=v, k_scale=k_scale, v_scale=v_scale)

    def _page(self, layer: int, head: int, half: int, block: int) -> tuple[Ints, Ints]:
        data = self.memory.read(self.pages.page(layer, head, half, block), PAGE_BYTES)
        numbers, scales = unpack_page(data, half=half)
        return numbers.copy(), scales


def _by_block(positions: Ints) -> Iterator[tuple[int, Ints]]:
    """Each block of 64 tokens, and which of the positions are in it."""
    blocks = positions // BLOCK_TOKENS
    for block in np.unique(blocks).tolist():
        yield block, np.flatnonzero(blocks == block)
