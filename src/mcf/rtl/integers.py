"""The numbers of a run on whole nodes: INT4 keys and values with a scale for each token, queries of 12 bits.

The power of the keys' scales and the unit of the values are constants of a layer and KV head that all nodes know, as
calibration would give them: states of several nodes could not meet otherwise. Each number is rounded once, by the
processor of the node that makes it.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mcf.rtl.golden.attention import Queries, Shard
from mcf.rtl.number import Array
from mcf.rtl.quantise import QUERY_MAX, VALUE_UNIT, key_power, quantise_queries, quantise_shard, value_scale
from mcf.schedule.meta import ScheduleMeta

_QUERY_BITS = 12
_NIBBLES = 8  # of a float32
Ints = NDArray[np.int64]


class Integers:
    """What q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d] become. `v_unit` [L, Hkv]: values are fractions of it."""

    def __init__(self, meta: ScheduleMeta, tensors: Sequence[Array]) -> None:
        self.meta, (self.q, self.k, self.v) = meta, tensors
        places = [(layer, head) for layer in range(meta.num_layers) for head in range(meta.num_kv_heads)]
        self.power = {at: key_power(self.k[at[0], :, at[1]]) for at in places}
        self.v_unit = np.array([value_scale(self.v[layer, :, head]) for layer, head in places])
        self.v_unit = self.v_unit.reshape(meta.num_layers, meta.num_kv_heads)

    def quantise(self, layer: int, head: int, k: Array, v: Array) -> Shard:
        """Keys and values [T, d] of one KV head as integers."""
        return quantise_shard(k, v, power=self.power[layer, head], v_scale=float(self.v_unit[layer, head]))

    def shard(self, layer: int, head: int, positions: Ints) -> Shard:
        """What tokens must be, wherever they were made: from the tensors, not from anybody's memory."""
        return self.quantise(layer, head, self.k[layer, positions, head], self.v[layer, positions, head])

    def queries(self, layer: int, head: int, q: Array) -> Queries:
        """Queries [H, d] that meet one KV head."""
        return quantise_queries(q, power=self.power[layer, head], scale=self.meta.head_dim**-0.5)

    def head_units(self, layer: int) -> Array:
        """The values' unit of each query head, [Hq, 1]."""
        units: Array = np.repeat(self.v_unit[layer], self.meta.group_heads)[:, None]
        return units

    def stand_for(self) -> tuple[Array, Array, Array]:
        """The real numbers q, k, v that all these integers stand for: what a reference must be given."""
        k, v = np.empty(self.k.shape), np.empty(self.v.shape)
        for (layer, head), power in self.power.items():
            shard = self.shard(layer, head, np.arange(self.k.shape[1]))
            k[layer, :, head] = shard.k * (shard.k_scale[:, None] * math.ldexp(1.0, -power))
            unit = self.v_unit[layer, head] / (VALUE_UNIT << 16)
            v[layer, :, head] = shard.v * (shard.v_scale[:, None] * unit)
        return rounded(self.q), k, v


def rounded(q: Array) -> Array:
    """Queries [..., d] to multiples of a float32 unit each, 2,047 of which are the largest magnitude."""
    integers, units = _twelve_bits(q)
    out: Array = integers * units.astype(np.float64)
    return out


def pack_queries(q: Array) -> bytes:
    """Rounded queries [n, d] in 16 bits a number: 12 of the integer, and in the first 8 numbers 4 of the unit."""
    integers, units = _twelve_bits(q)
    words = integers & (1 << _QUERY_BITS) - 1
    shifts = 4 * np.arange(_NIBBLES)
    words[..., :_NIBBLES] |= (units.view("<u4").astype(np.int64) >> shifts & 15) << _QUERY_BITS
    return words.astype("<u2").tobytes()


def unpack_queries(data: bytes, head_dim: int) -> Array:
    """The queries that `pack_queries` wrote, [n, d]."""
    words = np.frombuffer(data, "<u2").astype(np.int64).reshape(-1, head_dim)
    integers = (words & (1 << _QUERY_BITS) - 1 ^ 1 << _QUERY_BITS - 1) - (1 << _QUERY_BITS - 1)
    bits = ((words[:, :_NIBBLES] >> _QUERY_BITS) << 4 * np.arange(_NIBBLES)).sum(axis=1, keepdims=True)
    out: Array = integers * bits.astype("<u4").view("<f4").astype(np.float64)
    return out


def _twelve_bits(q: Array) -> tuple[Ints, NDArray[np.float32]]:
    units = (np.abs(q).max(-1, keepdims=True) / QUERY_MAX).astype("<f4")
    integers = np.rint(q / np.where(units > 0, units, 1)).astype(np.int64)
    return integers, units
