"""The compute half against its golden model on the bytes of memory, and how fast it takes weights."""

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from compute_half import RUN_BYTES, Image, Ran, attend, gemv, load, run_compute
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.state import to_beats
from mcf.rtl.golden.tiles import matrix_tiles

NUMBERS, SCALES, ROWS, MATRIX, KEYS, VALUES = 0x100, 0x2000, 0x4000, 0x10000, 0x40000, 0x60000


def check(image: Image, commands: list[int], ran: Ran, result: bytearray) -> None:
    """Memory, events and records are those of the model."""
    model = ComputeModel(image=bytearray(image.bytes))
    model.run(commands)
    assert sorted(ran.events) == sorted(model.events)
    assert result == model.image
    assert ran.records == [to_beats(state, child, 16) for state, child in model.states]


def test_weights_are_multiplied_as_fast_as_memory_gives_them() -> None:
    image = Image(1)
    image.activations(NUMBERS, 1, 256)
    image.matrix(MATRIX, 256, 256)
    commands = [
        load(address=NUMBERS, count=32, set_event=3),
        gemv(address=MATRIX, second=ROWS, tiles=2, count=2, set_event=5),
    ]
    result = bytearray(image.bytes)
    ran = run_compute(result, commands, latency=64)
    check(image, commands, ran, result)
    assert result[ROWS : ROWS + 1024] != bytes(1024)
    assert len(ran.beats) == 4 * 132  # each of them is a beat of every port
    assert len(ran.beats) / (ran.beats[-1] - ran.beats[0] + 1) > 0.98  # 0.85 is asked for


def test_query_heads_attend_a_shard() -> None:
    image = Image(2)
    image.query_scales(SCALES)
    image.activations(NUMBERS, 2, 128)
    image.shard(KEYS, VALUES, 150, 128)
    shared = {"address": KEYS, "second": VALUES, "place": 16, "slot": 4}
    commands = [
        load(address=SCALES, count=4, table=1),
        load(address=NUMBERS, count=32, place=16),
        attend(**shared, count=2, tiles=2, tokens=22, finish=1, child=5, set_event=9),
        attend(slot=4, count=1, tiles=0, finish=1, child=6, set_event=9),
    ]
    ran = run_compute(bytearray(image.bytes), commands, latency=16)
    check(image, commands, ran, image.bytes)
    assert len(ran.records) == 3


@pytest.mark.parametrize(
    ("seed", "pause", "stalls"), [(3, 0.0, 0.0), pytest.param(4, 0.3, 0.4, marks=pytest.mark.full)]
)
def test_products_and_attention_take_turns(seed: int, pause: float, stalls: float) -> None:
    """Vectors that share a matrix, heads of 64, a head that goes on over two commands, events, a fence."""
    image = Image(seed)
    image.query_scales(SCALES)
    image.activations(NUMBERS, 2, 128)
    image.activations(NUMBERS + 0x400, 1, 64, padded=128)
    image.matrix(MATRIX, 128, 128)
    image.shard(KEYS, VALUES, 128, 64)
    attended = attend(address=KEYS, second=VALUES, columns=64, place=64, count=1, tiles=1, tokens=128, set_event=2)
    commands = [
        load(address=NUMBERS, count=32),
        gemv(address=MATRIX, second=ROWS, tiles=1, count=1, vectors=2, set_event=7),
        load(address=SCALES, count=4, table=1),
        load(address=NUMBERS + 0x400, count=16, place=64),
        attended,
        # the same numbers, at another place: the fence lets the products of the first be over
        load(address=NUMBERS + 0x200, count=16, fence=1, wait_event=7, set_event=1),
        attend(address=KEYS, second=VALUES, columns=64, place=64, count=1, tiles=1, tokens=7, finish=1, wait_event=2),
        gemv(address=MATRIX, second=ROWS + 0x800, tiles=1, count=1, wait_event=1),
        load(count=0, set_event=4),
    ]
    result = bytearray(image.bytes)
    ran = run_compute(result, commands, stalls=stalls, latency=30, pause=pause, seed=seed)
    check(image, commands, ran, result)
    assert ran.waited == [7, 2, 1]


def test_what_memory_answers_with_an_error_is_counted_and_nothing_hangs() -> None:
    image = Image(5)
    image.activations(NUMBERS, 1, 128)
    image.matrix(MATRIX, 128, 128)
    broken = {MATRIX + 16 * 7, MATRIX + 3 * RUN_BYTES + 16 * 99, ROWS + 48}
    commands = [load(address=NUMBERS, count=16), gemv(address=MATRIX, second=ROWS, tiles=1, count=1, set_event=8)]
    ran = run_compute(bytearray(image.bytes), commands, latency=5, broken=broken.__contains__)
    assert ran.events == [8]
    assert ran.failed == len(broken)


def test_the_model_multiplies_as_numpy_does() -> None:
    rng, model = np.random.default_rng(6), ComputeModel(image=bytearray(0x20000))
    weights, scales, vector = rng.integers(-8, 8, (128, 256)), rng.integers(0, 99, (128, 2)), rng.integers(-99, 99, 256)
    image = Image(6)
    image.runs(MATRIX, matrix_tiles(weights, scales))
    image.put(NUMBERS, vector.astype("<i2").tobytes())
    model.image = image.bytes
    model.run([load(address=NUMBERS, count=32), gemv(address=MATRIX, second=ROWS, tiles=1, count=2, shift=0)])
    rows = np.frombuffer(bytes(image.bytes[ROWS : ROWS + 512]), dtype="<i4")
    assert (rows == (weights * np.repeat(scales, 128, axis=1)) @ vector).all()
