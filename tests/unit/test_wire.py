"""The packet header: round trips, isolation of fields, the CRC; and headers of schedule rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcf.errors import ScheduleError
from mcf.policies import plan
from mcf.schedule import Schedule
from mcf.schedule.crc16 import crc16, crc16_many
from mcf.schedule.packets import SEGMENT_BEATS, headers_of
from mcf.schedule.steps import (
    DECODE,
    DRAIN,
    KEEP,
    KIND_NAMES,
    MERGE,
    PREFILL,
    SEND,
    STATE,
    STREAM,
)
from mcf.schedule.wire import (
    FIELDS,
    HEADER_BITS,
    RECORD,
    TABLE,
    Collective,
    Field,
    Flags,
    Op,
    Stage,
    markdown,
    pack,
    pack_many,
    unpack,
    unpack_many,
)
from plans import request

WRITTEN = [field for field in TABLE if field.name not in ("ver", "hcrc")]


def values_of(field: Field) -> st.SearchStrategy[int]:
    if field.codes is not None:
        return st.sampled_from([int(code) for code in field.codes])
    return st.integers(0, field.limit - 1)


HEADERS = st.fixed_dictionaries({field.name: values_of(field) for field in WRITTEN})


def records(rows: list[dict[str, int]]) -> np.ndarray:
    out = np.zeros(len(rows), dtype=RECORD)
    for i, row in enumerate(rows):
        for name, value in {"ver": 1, **row}.items():
            out[name][i] = value
    return out


# --- the table ---


def test_the_bits_of_the_design_notes() -> None:
    ends = {name: (field.high, field.low) for name, field in FIELDS.items()}
    assert ends["ver"] == (3, 0)
    assert ends["stage"] == (5, 4)
    assert ends["op"] == (9, 6)
    assert ends["collective"] == (12, 10)
    assert ends["reduce_op"] == (15, 13)
    assert ends["flags"] == (19, 16)
    assert ends["src"] == (29, 20)
    assert (ends["dst_root"][0], ends["dst_node"][1]) == (49, 30)
    assert ends["route_id"] == (59, 50)
    assert (ends["block"][0], ends["slot"][1]) == (91, 60)
    assert ends["len"] == (103, 92)
    assert ends["tag"] == (111, 104)
    assert ends["hcrc"] == (127, 112)


def test_fields_fill_the_header_without_gaps() -> None:
    bits = [bit for field in TABLE for bit in range(field.low, field.high + 1)]
    assert bits == list(range(HEADER_BITS))


def test_the_papers_eight_fields_are_all_there() -> None:
    paper = {"stage", "op", "src", "dst", "kv_id", "route_id", "collective", "reduce_op"}
    assert {field.part_of for field in TABLE} - {""} == paper


def test_the_documents_table_has_a_line_per_field() -> None:
    lines = markdown().splitlines()
    assert len(lines) == len(TABLE) + 2
    assert lines[3] == "| 5:4 | 2 | `stage` | stage | stage of inference: 0 PREFILL, 1 CONVERGE, 2 DECODE, 3 CONTROL |"


# --- round trips ---


@given(HEADERS)
def test_a_header_reads_back(values: dict[str, int]) -> None:
    got = unpack(pack(values))
    assert {name: got[name] for name in values} == values
    assert got["ver"] == 1


@given(st.lists(HEADERS, max_size=5))
def test_bulk_equals_one_by_one(rows: list[dict[str, int]]) -> None:
    data = pack_many(records(rows))
    assert [int.from_bytes(bytes(row), "little") for row in data] == [pack(row) for row in rows]
    back = unpack_many(data)
    for name in (field.name for field in WRITTEN):
        assert back[name].tolist() == [row[name] for row in rows]


def test_a_header_as_bytes() -> None:
    word = pack({"stage": Stage.DECODE, "op": Op.STATE, "src": 3, "dst_node": 5, "block": 9, "len": 17})
    assert word.to_bytes(16, "little").hex() == "a101304001000000" + "004002100100" + "eba3"
    assert slow_crc(bytes.fromhex("a101304001000000004002100100")) == 0xA3EB


@given(HEADERS, st.sampled_from(WRITTEN), st.data())
def test_a_field_changes_only_its_own_bits(values: dict[str, int], field: Field, data: st.DataObject) -> None:
    changed = {**values, field.name: data.draw(values_of(field))}
    difference = pack(values) ^ pack(changed)
    mask = ((1 << field.width) - 1) << field.low | ((1 << 16) - 1) << FIELDS["hcrc"].low
    assert difference & ~mask == 0
    assert (difference == 0) == (values[field.name] == changed[field.name])


# --- the CRC ---


def test_crc_vectors() -> None:
    assert crc16(b"123456789") == 0x29B1
    assert crc16(b"") == 0xFFFF
    assert crc16(b"A") == 0xB915


def slow_crc(data: bytes) -> int:
    """Bit by bit, straight from the polynomial."""
    crc = 0xFFFF
    for byte in data:
        for bit in range(7, -1, -1):
            top = crc >> 15 ^ (byte >> bit & 1)
            crc = (crc << 1 & 0xFFFF) ^ (0x1021 if top else 0)
    return crc


@given(st.lists(st.binary(min_size=14, max_size=14), min_size=1, max_size=4))
def test_crc_equals_its_polynomial(rows: list[bytes]) -> None:
    expected = [slow_crc(row) for row in rows]
    assert [crc16(row) for row in rows] == expected
    assert crc16_many(np.frombuffer(b"".join(rows), np.uint8).reshape(-1, 14)).tolist() == expected


@given(HEADERS, st.integers(0, HEADER_BITS - 1))
def test_a_flipped_bit_is_found(values: dict[str, int], bit: int) -> None:
    word = pack(values) ^ 1 << bit
    with pytest.raises(ScheduleError, match="hcrc"):
        unpack(word)
    data = np.frombuffer(word.to_bytes(16, "little"), np.uint8).reshape(1, 16)
    with pytest.raises(ScheduleError, match=r"row 0\) whose hcrc"):
        unpack_many(data)


# --- refusals ---


@pytest.mark.parametrize("field", WRITTEN, ids=lambda field: field.name)
@pytest.mark.parametrize("bulk", [False, True])
def test_a_value_that_does_not_fit_names_its_field(field: Field, bulk: bool) -> None:
    for value in (-1, field.limit):
        with pytest.raises(ScheduleError, match=rf"got {field.name} = {value}.*expected"):
            pack_many(records([{field.name: value}])) if bulk else pack({field.name: value})


def test_a_code_without_a_name_is_refused() -> None:
    with pytest.raises(ScheduleError, match="got op = 13: expected one of 0 KV_REPLICA"):
        pack({"op": 13})
    with pytest.raises(ScheduleError, match=r"got collective = 6 \(row 1\)"):
        pack_many(records([{}, {"collective": 6}]))


def test_unknown_fields_sizes_and_versions_are_refused() -> None:
    with pytest.raises(ScheduleError, match="unknown header field 'dst'"):
        pack({"dst": 1})
    with pytest.raises(ScheduleError, match="129 bits"):
        unpack(1 << 128)
    with pytest.raises(ScheduleError, match="version 2"):
        unpack(pack({"ver": 2}))
    with pytest.raises(ScheduleError, match=r"row 0\) that is not of version 1"):
        unpack_many(pack_many(records([{"ver": 3}])))
    with pytest.raises(ScheduleError, match=r"shape \(2, 15\)"):
        unpack_many(np.zeros((2, 15), np.uint8))


# --- rows of a schedule ---


def aligned() -> Schedule:
    """Full replication: 2 nodes, 2 chunks of 512 tokens, head-tail pieces of 128."""
    return plan("full", request(2, 1024, 512, max_new_tokens=4))


def rows_of(sched: Schedule, **wanted: int) -> list[int]:
    mask = np.ones(len(sched), dtype=bool)
    for name, value in wanted.items():
        mask &= sched.steps[name] == value
    return np.flatnonzero(mask).tolist()


def test_a_kept_send_is_a_replica_of_each_block() -> None:
    sched = aligned()
    row = rows_of(sched, kind=SEND, node=1, chunk=1, hold=KEEP)[0]
    got = headers_of(sched, row, slot=7)
    meta = sched.meta
    blocks = [b for lo, hi in sched.spans(1, 1) for b in range(lo // 64, hi // 64)]
    assert blocks == [10, 11, 12, 13]
    assert sorted(set(got["block"].tolist())) == blocks
    expected = {"op": Op.KV_REPLICA, "stage": Stage.PREFILL, "src": 1, "dst_node": 0, "dst_root": 1, "slot": 7}
    expected |= {"collective": Collective.P2P, "route_id": 0, "len": SEGMENT_BEATS}
    for name, value in expected.items():
        assert set(got[name].tolist()) == {value}, name
    num_segments = 64 * meta.head_dim * meta.kv_bytes // 16 // SEGMENT_BEATS
    assert num_segments == 2
    keys = {tuple(r) for r in got[["layer", "head", "is_v", "block", "tag"]].tolist()}
    assert len(keys) == len(got) == meta.num_layers * meta.num_kv_heads * 2 * len(blocks) * num_segments
    assert unpack_many(pack_many(got))["block"].tolist() == got["block"].tolist()


def test_a_multicast_names_its_route() -> None:
    sched = plan("gather", request(4, 1024, 512))
    row = rows_of(sched, kind=SEND, hold=STREAM, node=2)[0]
    got = headers_of(sched, row)
    assert set(got["op"].tolist()) == {Op.KV_DATA}
    assert set(got["collective"].tolist()) == {Collective.MULTICAST}
    assert set(got["route_id"].tolist()) == {sched.step(row).route + 1}
    assert set(got["dst_node"].tolist()) == {2}


def test_drains_and_frees_have_headers_without_payload() -> None:
    sched = aligned()
    got = headers_of(sched, rows_of(sched, kind=DRAIN, node=0)[0])
    assert set(got["op"].tolist()) == {Op.KV_DRAIN}
    assert set(got["stage"].tolist()) == {Stage.CONVERGE}
    assert set(got["len"].tolist()) == {0}
    assert sorted(set(got["block"].tolist())) == [2, 3, 4, 5, 10, 11, 12, 13]


def test_a_decode_state_goes_by_the_tokens_tile() -> None:
    sched = aligned()
    row = rows_of(sched, kind=SEND, stage=DECODE, payload=STATE)[0]
    got = headers_of(sched, row, position=1025)
    assert set(got["op"].tolist()) == {Op.STATE}
    assert set(got["block"].tolist()) == {16}
    assert set(got["len"].tolist()) == {-(-2 * (8 + 2) * 4 // 16)}
    with pytest.raises(ScheduleError, match="position"):
        headers_of(sched, row)


def test_large_messages_are_cut_into_segments() -> None:
    asked = request(2, 256, 256)
    sched = plan("full", replace(asked, shape=replace(asked.shape, head_dim=128)))
    got = headers_of(sched, rows_of(sched, kind=SEND, stage=PREFILL)[0])
    num_segments = 64 * 128 * 4 // 16 // SEGMENT_BEATS
    assert got["tag"][:num_segments].tolist() == list(range(num_segments))
    assert got["flags"][:num_segments].tolist() == [0] * (num_segments - 1) + [Flags.LAST]
    assert set(got["len"].tolist()) == {SEGMENT_BEATS}


def test_pieces_inside_a_block_are_refused() -> None:
    sched = plan("full", request(2, 1000, 500))
    with pytest.raises(ScheduleError, match=r"piece \d+:\d+ starts inside a block of 64 tokens.*aligned"):
        headers_of(sched, rows_of(sched, kind=SEND, stage=PREFILL, node=1)[0])


def test_rows_without_packets_are_refused() -> None:
    sched = aligned()
    with pytest.raises(ScheduleError, match=f"is a {KIND_NAMES[MERGE]}: expected a send, drain or free"):
        headers_of(sched, rows_of(sched, kind=MERGE)[0])


def test_payload_bytes_of_a_row_equal_the_schedules() -> None:
    sched = aligned()
    for row in rows_of(sched, kind=SEND, stage=PREFILL):
        got = headers_of(sched, row)
        assert int(got["len"].sum()) * 16 == int(sched.row_bytes[row]) * sched.meta.num_layers
