"""Numbers as they travel: how far off, and not further the second time."""

from dataclasses import replace

import numpy as np
import pytest

from mcf.cluster import Cluster
from mcf.policies import PlanRequest, plan
from mcf.rtl.number import as_kept, kv_from_wire, kv_to_wire
from mcf.testing.policies import TINY

META = plan(
    "full", PlanRequest(shape=TINY, cluster=Cluster.uniform("switch", 2), prompt_tokens=128, chunk_tokens=128)
).meta


@pytest.mark.parametrize(
    ("kv_bytes", "scale_bytes", "error"), [(4, 0, 2**-24), (2, 0, 2**-8), (0.5, 2, 1 / 13.9), (0.5, 4, 1 / 13.999)]
)
def test_a_number_is_off_by_half_a_step_at_most(kv_bytes, scale_bytes, error):
    meta = replace(META, kv_bytes=kv_bytes, kv_scale_bytes=scale_bytes)
    values = np.random.default_rng(0).normal(size=(64, meta.head_dim)) * np.logspace(-6, 6, 64)[:, None]
    data = kv_to_wire(values, meta)
    assert len(data) == 64 * (meta.head_dim * kv_bytes + scale_bytes)
    got = kv_from_wire(data, meta)
    largest = np.abs(values).max(axis=1, keepdims=True)
    assert np.all(np.abs(got - values) <= error * largest)
    assert kv_bytes == 4 or float(np.abs(got - values).max()) > 0
    assert kv_to_wire(got, meta) == data


def test_int4_is_two_numbers_in_a_byte_and_a_scale_behind_them():
    meta = replace(META, head_dim=4, kv_bytes=0.5, kv_scale_bytes=2)
    data = kv_to_wire(np.array([[7.0, -7, 1, -2.4], [0, 0, 0, 0]]), meta)
    assert data == bytes([0x97, 0xE1, 0x80, 0x3F, 0, 0, 0, 0])
    assert kv_from_wire(data, meta).tolist() == [[7, -7, 1, -2], [0, 0, 0, 0]]


def test_what_is_kept_is_what_others_get():
    meta = replace(META, kv_bytes=0.5, kv_scale_bytes=2)
    values = np.random.default_rng(1).normal(size=(3, meta.num_kv_heads, meta.head_dim))
    kept = as_kept(values, meta)
    assert kept.shape == values.shape
    for head in range(meta.num_kv_heads):
        assert np.array_equal(kv_from_wire(kv_to_wire(values[:, head], meta), meta), kept[:, head])
