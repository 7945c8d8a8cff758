"""Pages of a whole node's memory: halves of tiles, at addresses of their own."""

import numpy as np
import pytest

from mcf.rtl.decode_image import tile_runs, value_runs
from mcf.rtl.golden.attention import Shard
from mcf.rtl.golden.tiles import BEAT_BYTES, SCALE_BEATS
from mcf.rtl.page_store import PageStore
from mcf.rtl.pages import PAGE_BYTES, PageMap, pack_page, unpack_page
from mcf.schedule import ScheduleMeta

META = ScheduleMeta(
    policy="x", num_nodes=1, prompt_tokens=200, chunk_tokens=200, num_layers=2, num_q_heads=4, num_kv_heads=2,
    head_dim=128, kv_bytes=0.5, kv_scale_bytes=2, max_new_tokens=60,
)  # fmt: skip
HEADS = SCALE_BEATS * BEAT_BYTES  # bytes of a tile's scales in a port
HALF = 64 * BEAT_BYTES


class Memory:
    """Bytes as `mcf.rtl.mesh.ddr.Ddr` has them."""

    def __init__(self) -> None:
        self.bytes = bytearray(1 << 18)

    def write(self, address: int, values: bytes) -> None:
        self.bytes[address : address + len(values)] = values

    def read(self, address: int, size_bytes: int) -> bytes:
        return bytes(self.bytes[address : address + size_bytes])


def random_tokens(count: int, *, seed: int = 0) -> Shard:
    rng = np.random.default_rng(seed)
    numbers, scales = rng.integers(-7, 8, (2, count, 128)), rng.integers(0, 1 << 16, (2, count))
    return Shard(k=numbers[0], v=numbers[1], k_scale=scales[0], v_scale=scales[1])


@pytest.mark.parametrize("half", [0, 1])
def test_a_page_reads_back(half: int) -> None:
    tokens = random_tokens(64)
    numbers, scales = (tokens.v, tokens.v_scale) if half else (tokens.k, tokens.k_scale)
    page = pack_page(numbers, scales, half=half)
    assert len(page) == PAGE_BYTES == 264 * BEAT_BYTES
    found, found_scales = unpack_page(page, half=half)
    assert np.array_equal(found, numbers)
    assert np.array_equal(found_scales, scales)


def test_two_pages_are_the_two_halves_of_a_tile() -> None:
    """Their runs, one behind the other, are what the four ports hold of the tile."""
    both = random_tokens(128)
    at = slice(0, 64), slice(64, 128)
    keys = [pack_page(both.k[half], both.k_scale[half], half=0) for half in at]
    values = [pack_page(both.v[half], both.v_scale[half], half=1) for half in at]
    for port, run in enumerate(tile_runs(both.k, both.k_scale)):
        mine, first = keys[port // 2], port % 2 * 2 * HALF
        assert run[HEADS:] == mine[first : first + 2 * HALF]
        assert run[:HEADS] == b"".join(page[4 * HALF :][port * 32 : port * 32 + 32] for page in keys)
    for port, run in enumerate(value_runs(both.v, both.v_scale)):
        assert run[HEADS:] == b"".join(page[port * HALF : (port + 1) * HALF] for page in values)
        assert run[:HEADS] == b"".join(page[4 * HALF :][port * 32 : port * 32 + 32] for page in values)


def test_pages_lie_apart_and_work_behind_them() -> None:
    pages = PageMap(meta=META, size_bytes=1 << 20)
    assert pages.num_blocks == 5
    places = [pages.page(*place) for place in np.ndindex(2, 2, 2, 5)]
    assert places == list(range(0, 40 * PAGE_BYTES, PAGE_BYTES))
    assert places[-1] + PAGE_BYTES <= pages.end < pages.work.start < pages.work.stop == 1 << 20


def test_tokens_are_read_as_they_were_written_and_not_once_they_are_spoilt() -> None:
    store, tokens = PageStore(PageMap(meta=META, size_bytes=1 << 18), Memory()), random_tokens(150)
    positions = np.arange(30, 180)
    store.write(1, 0, positions, tokens)
    order = np.random.default_rng(1).permutation(150)
    for at in (np.arange(150), order):
        found = store.read(1, 0, positions[at])
        for name in ("k", "v", "k_scale", "v_scale"):
            assert np.array_equal(getattr(found, name), getattr(tokens, name)[at])
    store.spoil(1, 0, positions[:50])
    found = store.read(1, 0, positions)
    assert (found.k[:50] == -8).all()
    assert (found.v_scale[:50] == 0xFFFF).all()
    assert np.array_equal(found.v[50:], tokens.v[50:])
    assert not store.read(1, 1, positions).k.any()
