"""The compute half with its attention unit, against the golden model on the bytes of memory."""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from axi_memory import Memory
from mcf.rtl.commands import ComputeOp, pack_command, unpack_command
from mcf.rtl.golden.attention import ROW_SHIFT
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.state import to_beats
from mcf.rtl.golden.tiles import key_tiles, port_runs, value_tiles
from mcf.rtl.hdl.compute import Compute
from rtl_streams import packets_of, put, simulate, sink

QUERIES, SCALES, KEYS, VALUES, STRIDE = 0x100, 0x1000, 0x10000, 0x14000, 0x800


def image_of(rng: np.random.Generator, tokens: int, heads: int, head_dim: int) -> bytearray:
    """One KV head's keys and values, and the queries that attend it."""
    image = bytearray(0x40000)

    def place(at: int, raw: bytes) -> None:
        image[at : at + len(raw)] = raw

    queries = np.zeros((heads, 128), dtype="<i2")
    queries[:, :head_dim] = rng.integers(-2047, 2048, (heads, head_dim))
    place(QUERIES, queries.tobytes())
    place(SCALES, np.array([(int(rng.integers(30000, 60000)), 4) for _ in range(16)], dtype="<u2").tobytes())
    for at, tiles in ((KEYS, key_tiles), (VALUES, value_tiles)):
        numbers, scales = rng.integers(-8, 8, (tokens, head_dim)), rng.integers(1 << 14, 1 << 16, tokens)
        for port, run in enumerate(port_runs(tiles(numbers, scales))):
            place(at + 16 * STRIDE * port, run)
    return image


def run(image: bytearray, commands: list[int], **memory: float) -> tuple[list[int], list[list[int]]]:
    """Run commands; return the events that were set and the records that left."""
    dut, served, events, beats = Compute(), Memory(image=image, **memory), [], []
    finished = sum(c["count"] for c in map(unpack_command, commands) if c["finish"])

    async def bench(ctx: Any) -> None:
        ctx.set(dut.waits.ready, 1)
        for command in commands:
            await put(ctx, dut.commands, unpack_command(command))
        while ctx.get(dut.busy) or len(beats) < 17 * finished:
            await ctx.tick()

    ports = [served.read_port(port) for port in dut.reads] + [served.write_port(dut.write)]
    processes = [process for port in ports for process in port]
    simulate(dut, bench, background=[sink(dut.sets, events), sink(dut.states, beats), *processes])
    return events, packets_of(beats)


def attend(head_dim: int, **values: int) -> int:
    shared = {"address": KEYS, "second": VALUES, "stride": STRIDE, "columns": head_dim, "shift": ROW_SHIFT}
    return pack_command(ComputeOp.ATTEND, **{**shared, "place": 16, "set_event": 9, **values})


@pytest.mark.parametrize(("head_dim", "tokens"), [(128, 150), (64, 128)])
def test_query_heads_attend_a_shard(head_dim: int, tokens: int) -> None:
    image = image_of(np.random.default_rng(head_dim), tokens, 3, head_dim)
    tiles = -(-tokens // 128)
    commands = [
        pack_command(ComputeOp.LOAD, address=SCALES, count=4, table=1),
        pack_command(ComputeOp.LOAD, address=QUERIES, count=3 * 16, place=16),
        attend(head_dim, count=3, slot=4, tiles=tiles, tokens=tokens - 128 * (tiles - 1), finish=1, child=5),
        attend(head_dim, count=1, slot=4, tiles=0, finish=1, child=6),
    ]
    model = ComputeModel(image=bytearray(image))
    model.run(commands)
    events, records = run(image, commands, latency=16)
    assert events == model.events == [9, 9]
    assert records == [to_beats(state, child, 16) for state, child in model.states]
    assert len(records) == 4
