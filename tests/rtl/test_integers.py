"""The numbers of a run on whole nodes are rounded once, and stand for known real numbers."""

import numpy as np

from mcf.rtl.integers import Integers, pack_queries, rounded, unpack_queries
from mcf.schedule import ScheduleMeta
from mcf.testing import random_qkv

META = ScheduleMeta(
    policy="x", num_nodes=1, prompt_tokens=40, chunk_tokens=40, num_layers=2, num_q_heads=4, num_kv_heads=2,
    head_dim=128, kv_bytes=0.5, kv_scale_bytes=2,
)  # fmt: skip


def test_part_by_part_the_integers_are_those_of_all_tokens() -> None:
    tensors = random_qkv(META)
    numbers = Integers(META, tensors)
    at = np.array([3, 17, 30])
    some, every = numbers.shard(1, 0, at), numbers.shard(1, 0, np.arange(40))
    assert np.array_equal(some.k, every.k[at])
    assert np.array_equal(some.v_scale, every.v_scale[at])
    made = numbers.quantise(1, 0, tensors[1][1, at, 0], tensors[2][1, at, 0])
    assert np.array_equal(made.v, some.v)


def test_what_integers_stand_for_is_near_and_is_rounded_to_the_same_integers() -> None:
    q, k, v = random_qkv(META)
    numbers = Integers(META, (q, k, v))
    real = numbers.stand_for()
    assert np.abs(real[0] - q).max() <= np.abs(q).max() / 2047 / 2 * 1.001
    for near, exact in zip(real[1:], (k, v), strict=True):
        largest = np.abs(exact).max(-1, keepdims=True)
        assert (np.abs(near - exact) <= largest / 7 / 2 * 1.01).all()
        assert np.abs(near - exact).max() > largest.min() / 20
    assert np.array_equal(rounded(real[0]), real[0])
    mine, once_more = numbers.queries(0, 1, q[0, 5, 2:]), numbers.queries(0, 1, real[0][0, 5, 2:])
    assert np.array_equal(mine.q, once_more.q)


def test_queries_travel_in_two_bytes_a_number_without_loss() -> None:
    q = rounded(np.random.default_rng(2).normal(size=(9, 128)) * np.logspace(-3, 3, 9)[:, None])
    q[4] = 0
    data = pack_queries(q)
    assert len(data) == 9 * 128 * 2
    assert np.array_equal(unpack_queries(data, 128), q)
