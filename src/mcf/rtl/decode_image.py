"""The memory of nodes in a decode step: keys, values and queries, quantised and laid out as `decode` says."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mcf.attn.state import attend, finish
from mcf.rtl.commands import GROUP_PLACES, PER_PLACE, SLOTS_PER_BEAT
from mcf.rtl.decode import DecodeCase, Layout, batches_of
from mcf.rtl.golden.attention import ROWS, Queries, Shard
from mcf.rtl.golden.tiles import BEAT_BYTES, NUM_PORTS, SCALE_BEATS
from mcf.rtl.quantise import (
    QUERY_MAX,
    VALUE_UNIT,
    key_power,
    quantise_queries,
    quantise_shard,
    value_scale,
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
# Of a layer: queries [Hq, d], keys and values [Hkv, T, d].
Tensors = tuple[Floats, Floats, Floats]
Source = Callable[[int], Tensors]
WIDE_BYTES = NUM_PORTS * BEAT_BYTES


def random_source(case: DecodeCase, *, seed: int = 0, sigma: float = 1.0) -> Source:
    """Normal keys and values, and queries whose scores have the standard deviation `sigma`; the same for each call."""
    shape = case.shape

    def layer(number: int) -> Tensors:
        rng = np.random.default_rng((seed, number))
        kv = (shape.num_kv_heads, case.context, shape.head_dim)
        return rng.normal(0, sigma, (shape.num_q_heads, shape.head_dim)), rng.normal(size=kv), rng.normal(size=kv)

    return layer


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadNumbers:
    """A KV head of one layer in integers: all tokens, its query heads, and what the integers stand for."""

    shard: Shard
    queries: Queries
    q: Floats
    power: int
    v_scale: float
    scale: float

    def part(self, tokens: range) -> Shard:
        """The tokens of one node."""
        at = slice(tokens.start, tokens.stop)
        held = self.shard
        return Shard(k=held.k[at], v=held.v[at], k_scale=held.k_scale[at], v_scale=held.v_scale[at])

    @cached_property
    def exactly(self) -> Floats:
        """Attention [heads, d] in float64 on the numbers that the integers stand for."""
        held = self.shard
        k = held.k * held.k_scale[:, None] * 2.0**-self.power
        v = held.v * held.v_scale[:, None] * self.v_scale / (VALUE_UNIT << 16)
        tokens = np.arange(len(k))
        out: Floats = finish(attend(self.q[None], k[:, None], v[:, None], tokens[-1:], tokens, self.scale))[0]
        return out


def quantised(case: DecodeCase, tensors: Tensors) -> list[HeadNumbers]:
    """A layer's KV heads; all nodes share a head's power and value scale, or their states could not meet."""
    q, k, v = tensors
    group, scale = case.shape.num_group_heads, case.shape.head_dim**-0.5
    out = []
    for head in range(case.shape.num_kv_heads):
        mine = q[head * group : (head + 1) * group]
        power, v_scale = key_power(k[head]), value_scale(v[head])
        queries = quantise_queries(mine, power=power, scale=scale)
        shard = quantise_shard(k[head], v[head], power=power, v_scale=v_scale)
        stand_for = queries.q * (np.abs(mine).max(-1, keepdims=True) / QUERY_MAX)
        numbers = {"power": power, "v_scale": v_scale, "scale": scale}
        out.append(HeadNumbers(shard=shard, queries=queries, q=stand_for, **numbers))
    return out


def image_of(layout: Layout, layers: Callable[[int], list[HeadNumbers]]) -> bytearray:
    """A node's memory; `layers` gives the numbers of each layer."""
    image = bytearray(layout.num_bytes)
    for layer in layout.case.layers:
        for address, data in layer_parts(layout, layer, layers(layer)):
            image[address : address + len(data)] = data
    return image


def layer_parts(layout: Layout, layer: int, heads: list[HeadNumbers]) -> list[tuple[int, bytes]]:
    """What one layer puts where: (address, bytes)."""
    parts = []
    for head, numbers in enumerate(heads):
        held = numbers.part(layout.case.shard(layout.node))
        runs = (
            (layout.keys(layer, head), tile_runs(held.k, held.k_scale)),
            (layout.values(layer, head), value_runs(held.v, held.v_scale)),
        )
        for address, ports in runs:
            parts += [(address + p * layout.stride * BEAT_BYTES, run) for p, run in enumerate(ports)]
    for number, batch in enumerate(batches_of(layout.case.shape)):
        some = [heads[head].queries for head in batch]
        parts.append((layout.scales(layer, number), scale_bytes(some)))
        parts.append((layout.queries(layer, number), query_bytes(some)))
    return parts


def tile_runs(numbers: Ints, scales: Ints) -> list[bytes]:
    """The four ports' runs of tiles of 128 tokens: `numbers` [T, d] a beat per dimension, `scales` [T]."""
    tiles, columns = -(-len(numbers) // ROWS), numbers.shape[1]
    padded = np.zeros((tiles * ROWS, columns), np.int64)
    padded[: len(numbers)] = numbers
    return runs_of(padded.reshape(tiles, ROWS, columns).transpose(0, 2, 1), scales)


def value_runs(values: Ints, scales: Ints) -> list[bytes]:
    """The four ports' runs of tiles of 128 tokens: `values` [T, d] a beat per token, `scales` [T]."""
    tiles = -(-len(values) // ROWS)
    padded = np.zeros((tiles * ROWS, ROWS), np.int64)
    padded[: len(values), : values.shape[1]] = values
    return runs_of(padded.reshape(tiles, ROWS, ROWS), scales)


def runs_of(beats: Ints, scales: Ints) -> list[bytes]:
    """The four ports' runs: `beats` [tiles, beats, 128] in -8..7, each tile behind its 128 of `scales`."""
    tiles, num_beats, _ = beats.shape
    nibbles = (beats & 15).astype(np.uint8)
    packed = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    heads = np.zeros(tiles * ROWS, "<u2")
    heads[: len(scales)] = scales
    wide = np.concatenate([heads.view(np.uint8).reshape(tiles, SCALE_BEATS, WIDE_BYTES), packed], axis=1)
    ports = wide.reshape(tiles * (SCALE_BEATS + num_beats), NUM_PORTS, BEAT_BYTES).transpose(1, 0, 2)
    return [port.tobytes() for port in ports]


def scale_bytes(some: list[Queries]) -> bytes:
    """The table of query heads' scales that LOAD takes."""
    pairs = np.concatenate([np.stack([each.scale, each.shift], axis=1) for each in some])
    padded = np.zeros((-(-len(pairs) // SLOTS_PER_BEAT) * SLOTS_PER_BEAT, 2), "<u2")
    padded[: len(pairs)] = pairs
    return padded.tobytes()


def query_bytes(some: list[Queries]) -> bytes:
    """Queries as LOAD takes them: 128 numbers of 16 bits each."""
    rows = np.concatenate([each.q for each in some])
    padded = np.zeros((len(rows), GROUP_PLACES * PER_PLACE), "<i2")
    padded[:, : rows.shape[1]] = rows
    return padded.tobytes()
