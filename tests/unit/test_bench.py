"""Spreads, bounds and comparisons by hand; what a worker measures; one measurement on threads instead of processes."""

import json
from dataclasses import replace

import pytest

from mcf.bench.bound import decode_bound_s, decode_bytes, prefill_bound_s, prefill_flops
from mcf.bench.compare import compare, differences, read_measurement
from mcf.bench.environment import environment
from mcf.bench.memory import buffer_bytes
from mcf.bench.run import FORMAT, random_prompt
from mcf.bench.settings import DECODE, PREFILL, Settings
from mcf.bench.spread import ratio, spread
from mcf.bench.words import comparison_rows
from mcf.dist.local import LocalWorld
from mcf.dist.measure import measure
from mcf.engine.planner import make_plan
from mcf.errors import UserError
from mcf.model import ModelShape

SHAPE = ModelShape(
    name="by hand",
    num_layers=2,
    num_q_heads=4,
    num_kv_heads=2,
    head_dim=8,
    hidden_size=32,
    intermediate_size=64,
    vocab_size=100,
    max_positions=4096,
)
SETTINGS = Settings(
    kind=PREFILL,
    model="demo",
    prompt_tokens=100,
    max_tokens=1,
    workers=2,
    policy="ring",
    chunk_tokens="auto",
    kv_memory_bytes=None,
    dtype="float32",
    threads=1,
    rounds=3,
    warmup=1,
    seed=0,
)


def measurement(values, settings=SETTINGS, cpu="a processor"):
    return {
        "format": FORMAT,
        "settings": settings.to_json(),
        "environment": {"machine": {"cpu": cpu}, "versions": {"mcf": "1"}},
        "seconds": spread(values),
        "achieved_of_bound": 0.5,
    }


def test_a_spread_has_the_median_and_the_quartiles():
    found = spread([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found["min"], found["low"], found["median"], found["high"], found["max"]) == (1, 2, 3, 4, 5)
    assert found["values"] == [5.0, 1.0, 2.0, 4.0, 3.0]
    assert spread([7.0])["low"] == spread([7.0])["high"] == 7.0
    with pytest.raises(UserError, match="at least one round"):
        spread([])


def test_a_ratio_lies_between_opposite_quartiles():
    assert ratio(spread([2.0, 4.0, 6.0]), spread([1.0, 2.0, 3.0])) == {"median": 2.0, "low": 1.2, "high": 5 / 1.5}


def test_the_bound_of_prefill_by_hand():
    layer = 2 * 32 * 8 * (4 + 2) + 3 * 32 * 64
    assert prefill_flops(SHAPE, 3) == 2 * 2 * layer * 3 + 2 * 4 * 4 * 8 * 6 + 2 * 100 * 32
    assert prefill_bound_s(SHAPE, 3, [100.0, 300.0]) == prefill_flops(SHAPE, 3) / 400


def test_the_bound_of_decode_by_hand():
    layer = 2 * 32 * 8 * (4 + 2) + 3 * 32 * 64
    assert decode_bytes(SHAPE, 10, 2) == 4 * (2 * layer + 100 * 32) + 2 * 2 * 2 * 8 * 4 * 5
    assert decode_bound_s(SHAPE, 10, [50.0, 10.0]) == decode_bytes(SHAPE, 10, 2) / 10


def test_stated_buffers_grow_with_the_chunk_and_the_workers():
    def most(num_workers: int, chunk: int) -> int:
        return max(
            buffer_bytes(SHAPE, make_plan(SHAPE, prompt_tokens=512, num_workers=num_workers, chunk_tokens=chunk))
        )

    assert most(1, 64) < most(1, 512)
    assert most(1, 64) < most(2, 128)  # as many tokens each, and the other's states


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rounds": 0}, "got 0 rounds"),
        ({"warmup": -1}, "-1 to warm up"),
        ({"threads": 0}, "got 0 threads"),
        ({"workers": 0}, "got 0 workers"),
        ({"policy": "rong"}, "rong"),
        ({"kind": DECODE}, "got 1 tokens to decode"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(change, words):
    with pytest.raises(UserError, match=words):
        replace(SETTINGS, **change)


def test_comparing_the_same_settings():
    found = compare(measurement([2.0, 2.0]), measurement([1.0, 1.0], replace(SETTINGS, rounds=9)))
    assert found["ratio"]["median"] == 2.0
    assert found["differences"] == {}
    assert "nothing" in dict(comparison_rows(found))["different"]


def test_what_differs_must_be_named():
    a, b = measurement([2.0]), measurement([1.0], replace(SETTINGS, workers=1, dtype="bfloat16"))
    assert differences(a, b) == {"workers": (2, 1), "dtype": ("float32", "bfloat16")}
    with pytest.raises(UserError, match=r"differ in dtype, workers .*say --across dtype,workers"):
        compare(a, b)
    with pytest.raises(UserError, match="differ in workers"):
        compare(a, b, across=["dtype"])
    assert compare(a, b, across=["dtype", "workers"])["differences"]["workers"] == [2, 1]
    with pytest.raises(UserError, match="got --across wrokers"):
        compare(a, b, across=["wrokers"])


def test_other_machines_are_refused():
    with pytest.raises(UserError, match="differ in machine"):
        compare(measurement([1.0]), measurement([1.0], cpu="another"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "mcf-bench 0"}', "\x00"])
def test_what_is_no_measurement_is_refused(text):
    with pytest.raises(UserError, match="'x' is no measurement"):
        read_measurement(text, "x")
    assert read_measurement(json.dumps(measurement([1.0])), "x")["format"] == FORMAT


def test_prompts_are_drawn_from_the_seed():
    assert random_prompt(50, 9, 1) == random_prompt(50, 9, 1) != random_prompt(50, 9, 2)
    assert set(random_prompt(3, 200, 0)) == {0, 1, 2}


def test_the_environment_says_where():
    found = environment(["mcf", "bench", "a b"])
    assert found["command"] == "mcf bench 'a b'"
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 0
    assert {"mcf", "torch"} <= found["versions"].keys()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rates_and_sizes_of_this_process(dtype):
    (transport,) = LocalWorld(1).transports
    rates = measure("rates", transport, dtype=dtype, num_bytes=0)
    assert rates["flops_s"] > 0
    assert rates["read_bytes_s"] > 0
    sizes = measure("new_peak", transport, dtype=dtype, num_bytes=0)
    assert 0 < sizes["rss_bytes"] <= sizes["peak_rss_bytes"]
    assert measure("exchange", transport, dtype=dtype, num_bytes=8) == {"exchange_s": 0.0}


def test_workers_time_an_exchange():
    found = LocalWorld(3).run(lambda transport: measure("exchange", transport, dtype="float32", num_bytes=64))
    assert all(numbers["exchange_s"] > 0 for numbers in found)
