"""Commands of the compute half: every field comes back, and what the hardware cannot do is one clear line."""

import numpy as np
import pytest

from mcf.errors import ScheduleError
from mcf.rtl.commands import COMMAND_BITS, FIELDS, TABLE, ComputeOp, markdown, pack_command, unpack_command
from mcf.rtl.golden.tiles import TILE_BEATS, key_tiles, matrix_tiles, port_runs, read_tile, value_tiles

GEMV = {"address": 16, "second": 32, "stride": 9, "tiles": 3, "count": 12, "vectors": 2, "columns": 128}
ATTEND = {"tiles": 2, "count": 6, "slot": 3, "columns": 64, "tokens": 5, "finish": 1, "child": 2}


def test_the_fields_fill_the_command_without_a_gap() -> None:
    assert [field.low for field in TABLE[1:]] == [field.high + 1 for field in TABLE[:-1]]
    assert TABLE[-1].high == COMMAND_BITS - 1
    assert len(markdown().splitlines()) == len(TABLE) + 2


@pytest.mark.parametrize(
    ("op", "values"), [(ComputeOp.GEMV, GEMV), (ComputeOp.ATTEND, ATTEND), (ComputeOp.LOAD, {"count": 4, "table": 1})]
)
def test_what_was_packed_is_unpacked(op: ComputeOp, values: dict[str, int]) -> None:
    found = unpack_command(pack_command(op, **values))
    run = {"run": 12 * 132} if op is ComputeOp.GEMV else {}
    assert found == {**dict.fromkeys(FIELDS, 0), **values, **run, "op": op}


@pytest.mark.parametrize(
    ("op", "values", "told"),
    [
        (ComputeOp.LOAD, {"colour": 1}, "unknown command field 'colour': known are op, fence"),
        (ComputeOp.LOAD, {"count": 4096}, "got count = 4096: expected 0 to 2047"),
        (ComputeOp.LOAD, {"address": 8}, "LOAD: got address = 8: expected a multiple of 16"),
        (ComputeOp.LOAD, {"count": 100, "place": 2000}, "LOAD: got 100 beats for place 2000: expected .* within 2048"),
        (ComputeOp.LOAD, {"count": 5, "table": 1}, "LOAD: got 5 beats for place 0: expected them to end within 4"),
        (ComputeOp.GEMV, {**GEMV, "columns": 129}, "GEMV: got 129 columns: expected 1 to 128"),
        (ComputeOp.GEMV, {**GEMV, "vectors": 0}, "GEMV: got vectors = 0: expected at least 1"),
        (
            ComputeOp.GEMV,
            {**GEMV, "vectors": 11},
            "GEMV: got 11 vectors of 12 groups .* within 2048 places",
        ),
        (
            ComputeOp.GEMV,
            {**GEMV, "count": 40},
            "GEMV: got a row tile of 5280 beats for 2 vectors: .* 4096",
        ),
        (ComputeOp.ATTEND, {**ATTEND, "count": 14}, "ATTEND: got 14 heads from slot 3 on: .* within 16 slots"),
        (ComputeOp.ATTEND, {**ATTEND, "place": 2000}, "ATTEND: got 6 queries from place 2000 on"),
        (ComputeOp.ATTEND, {**ATTEND, "tokens": 129}, "ATTEND: got 129 tokens in the last tile: expected 1 to 128"),
        (ComputeOp.ATTEND, {**ATTEND, "tiles": 0, "finish": 0}, "ATTEND: got no tiles and no finish"),
    ],
)
def test_what_hardware_cannot_do_is_refused(op: ComputeOp, values: dict[str, int], told: str) -> None:
    with pytest.raises(ScheduleError, match=told):
        pack_command(op, **values)


def test_tiles_come_back_from_the_ports_runs() -> None:
    rng = np.random.default_rng(1)
    weights, scales = rng.integers(-8, 8, (200, 256)), rng.integers(0, 1 << 16, (200, 2))
    runs = port_runs(matrix_tiles(weights, scales))
    at = [slice(16 * TILE_BEATS * index, 16 * TILE_BEATS * (index + 1)) for index in range(4)]
    tiles = [read_tile([run[one] for run in runs]) for one in at]
    assert {len(run) for run in runs} == {4 * 16 * TILE_BEATS}
    rows = [np.concatenate([tiles[i][0], tiles[i + 1][0]], axis=1) for i in (0, 2)]
    assert (np.concatenate(rows)[:200] == weights).all()
    assert (np.concatenate([tiles[1][1], tiles[3][1]])[:200] == scales[:, 1]).all()


def test_keys_lie_by_dimension_and_values_by_token() -> None:
    rng = np.random.default_rng(2)
    numbers, scales = rng.integers(-8, 8, (150, 64)), rng.integers(0, 1 << 16, 150)
    keys, values = (port_runs(tiles(numbers, scales)) for tiles in (key_tiles, value_tiles))
    second_keys, key_scales = read_tile([run[16 * 68 :] for run in keys])
    second_values, value_scales = read_tile([run[16 * TILE_BEATS :] for run in values])
    assert (second_keys[:22] == numbers[128:]).all()
    assert (second_values[:64, :22] == numbers[128:].T).all()
    assert not second_values[64:].any()
    assert (key_scales[:22] == scales[128:]).all()
    assert (value_scales == key_scales).all()
