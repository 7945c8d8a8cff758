"""The fast memory model: what it returns, stores and refuses, and how long it takes."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from ddr_run import Run
from dma_ports import DmaPorts
from dma_work import AREA, NUM_READERS, random_work, tiles_work
from mcf.errors import RunError, UserError
from mcf.rtl.build.cxxrtl import compile_module, missing_compiler
from mcf.rtl.golden.dma import read, write
from mcf.rtl.mesh.ddr import Ddr, DdrTiming
from mcf.rtl.mesh.library import Mesh, Stop

if why := missing_compiler():
    pytest.skip(why, allow_module_level=True)

FAST = DdrTiming(latency=0, row_miss=0, bytes_per_cycle=1000.0)


@pytest.mark.parametrize("timing", [FAST, DdrTiming(latency=30, row_miss=9, bytes_per_cycle=20.5, stall=0.2)])
def test_beats_and_memory_are_bit_exact(timing: DdrTiming) -> None:
    work = random_work(seed=3)
    run = Run(work, timing, stall=0.1)
    assert run.stop is Stop.QUIET
    for i, requests in enumerate(work.fetches):
        assert run.beats(i) == read(work.image, requests)
        assert run.counts[i].beats == len(run.beats(i))
    expected = bytearray(work.image)
    write(expected, work.puts, work.words)
    assert run.image == expected
    assert run.done_words[:, 0].tolist() == [0] * len(work.puts)


def test_all_ports_share_one_bus() -> None:
    work = tiles_work(seed=1, tiles=2)
    total = sum(beats for port in (*work.fetches, work.puts) for _, beats in port)
    wide, narrow = (Run(work, replace(FAST, bytes_per_cycle=rate)) for rate in (80.0, 24.0))
    assert wide.cycles < 1.15 * 2 * 132
    assert sum(count.starved for count in wide.counts) == 0
    assert total / 1.5 <= narrow.cycles <= 1.1 * total / 1.5
    ends = [int(cycles[-1]) for cycles, _ in narrow.taken]
    assert max(ends) - min(ends) < 0.02 * max(ends)  # they take turns


def test_another_row_costs_time() -> None:
    requests = tuple((16 * 8192 * (i % 2), 1) for i in range(20))
    work = replace(tiles_work(seed=1, tiles=1), fetches=(requests, (), (), ()))
    steady = replace(work, fetches=(((0, 1),) * 20, (), (), ()))
    missing, hitting = (Run(each, replace(FAST, latency=5, row_miss=30)) for each in (work, steady))
    assert (missing.counts[0].misses, hitting.counts[0].misses) == (20, 1)
    first, last = missing.taken[0][0][[0, -1]]
    assert last - first == 19 * 30
    assert hitting.taken[0][0][-1] - hitting.taken[0][0][0] < 19 * 6


def test_beyond_the_memory_there_are_errors_and_no_bytes() -> None:
    work = random_work(seed=5)
    run = Run(work, replace(FAST, size_bytes=NUM_READERS * AREA))  # without the writer's area
    assert run.stop is Stop.QUIET
    assert run.done_words[:, 0].tolist() == [int(beats > 0) for _, beats in work.puts]
    assert run.image == work.image[: NUM_READERS * AREA]


@pytest.mark.parametrize(
    "wrong", [dict(latency=-1), dict(bytes_per_cycle=float("nan")), dict(stall=1.0), dict(size_bytes=100)]
)
def test_what_is_no_memory_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="expected"):
        DdrTiming(**wrong)


def test_addresses_and_ports_that_are_not_there_are_named() -> None:
    with Mesh() as mesh:
        ports = mesh.instance(compile_module(DmaPorts(), name="dma_ports"))
        ddr: Ddr = mesh.ddr([(ports, "write")], DdrTiming(size_bytes=4096))
        assert ddr.read(0, 4096) == bytes(4096)
        with pytest.raises(UserError, match="0xff8 to 0x1008: expected at most 0x1000"):
            ddr.write(4088, bytes(16))
        with pytest.raises(UserError, match="'fetch__0': expected the prefix of an AXI port"):
            mesh.ddr([(ports, "fetch__0")])
    with pytest.raises(RunError, match="this mesh is closed"):
        ddr.read(0, 16)
