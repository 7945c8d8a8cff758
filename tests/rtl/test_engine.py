"""The compute half on a memory image: products end to end against the golden model, and how busy memory is."""

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from axi_memory import Memory
from mcf.rtl.commands import ComputeOp, pack_command, unpack_command
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.tiles import matrix_tiles, port_runs
from mcf.rtl.hdl.engine import Engine
from rtl_streams import put, simulate, sink

ACTIVATIONS, ROWS_AT, STRIDE = 0x100, 0x8000, 0x1000


def image_of(rng: np.random.Generator, rows: int, columns: int, vectors: int) -> bytearray:
    """Activations at ACTIVATIONS, the ports' runs from 0x10000 on, each STRIDE beats after the other."""
    image = bytearray(0x60000)
    numbers = rng.integers(-2048, 2048, vectors * columns).astype("<i2").tobytes()
    image[ACTIVATIONS : ACTIVATIONS + len(numbers)] = numbers
    beats = matrix_tiles(rng.integers(-8, 8, (rows, columns)), rng.integers(0, 1 << 16, (rows, columns // 128)))
    for port, run in enumerate(port_runs(beats)):
        at = 0x10000 + 16 * STRIDE * port
        image[at : at + len(run)] = run
    return image


def run(dut: Engine, image: bytearray, commands: list[int], **memory: float) -> tuple[list[int], list[int]]:
    """Run commands; return the events that were set, and the cycles in which a beat of a tile left the tile buffer."""
    served, events, beats = Memory(image=image, **memory), [], []

    async def bench(ctx) -> None:
        ctx.set(dut.waits.ready, 1)
        for command in commands:
            await put(ctx, dut.commands, unpack_command(command))
        while ctx.get(dut.busy):
            await ctx.tick()

    async def watch(ctx) -> None:
        cycle, reads = 0, dut.tiles.reads
        while True:
            _, _, is_beat = await ctx.tick().sample(reads.valid & reads.ready)
            cycle += 1
            beats.extend([cycle] if is_beat else [])

    ports = [served.read_port(port) for port in dut.reads] + [served.write_port(dut.write)]
    processes = [process for port in ports for process in port]
    simulate(dut, bench, background=[sink(dut.sets, events), watch, *processes])
    return events, beats


def test_a_product_of_several_tiles_groups_and_vectors() -> None:
    image = image_of(np.random.default_rng(1), 256, 256, 2)
    commands = [
        pack_command(ComputeOp.LOAD, address=ACTIVATIONS, count=64, place=8, set_event=3),
        pack_command(
            ComputeOp.GEMV,
            address=0x10000,
            second=ROWS_AT,
            stride=STRIDE,
            tiles=2,
            count=2,
            vectors=2,
            place=8,
            columns=128,
            shift=9,
            set_event=5,
        ),
    ]
    model = ComputeModel(image=bytearray(image))
    model.run(commands)
    events, _ = run(Engine(), image, commands, latency=10, pause=0.1)
    assert events == model.events == [3, 5]
    assert image[ROWS_AT:0x10000] == model.image[ROWS_AT:0x10000] != bytes(0x10000 - ROWS_AT)
    assert image == model.image


def test_weights_are_multiplied_as_fast_as_memory_gives_them() -> None:
    image = image_of(np.random.default_rng(2), 256, 512, 1)
    commands = [
        pack_command(ComputeOp.LOAD, address=ACTIVATIONS, count=64),
        pack_command(
            ComputeOp.GEMV,
            address=0x10000,
            second=ROWS_AT,
            stride=STRIDE,
            tiles=2,
            count=4,
            vectors=1,
            columns=128,
            shift=9,
            set_event=1,
        ),
    ]
    model = ComputeModel(image=bytearray(image))
    model.run(commands)
    _, beats = run(Engine(), image, commands, latency=64)
    assert image == model.image
    assert len(beats) == 8 * 132
    assert len(beats) / (beats[-1] - beats[0] + 1) > 0.98  # each of them is a beat of every port; 0.85 is asked for
