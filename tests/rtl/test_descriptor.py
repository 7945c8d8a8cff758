"""Descriptors: the table's bits, and the packets that a descriptor asks for."""

import random

import pytest

from mcf.errors import ScheduleError
from mcf.rtl.descriptor import (
    DESCRIPTOR_BITS,
    FIELDS,
    MAX_BEATS,
    TABLE,
    markdown,
    pack_descriptor,
    unpack_descriptor,
    words_of,
)
from mcf.rtl.golden.desc_ring import expand, is_bad
from mcf.rtl.golden.router import RouterModel
from mcf.schedule.packets import SEGMENT_BEATS
from mcf.schedule.wire import FIELDS as HEADER
from mcf.schedule.wire import Flags, Op, pack, unpack


def header_of(meta: int) -> dict[str, int]:
    values = {name: meta >> f.low & f.limit - 1 for name, f in HEADER.items() if name != "hcrc"}
    return unpack(pack(values))


def test_the_fields_fill_the_descriptor_without_a_gap() -> None:
    assert [f.low for f in TABLE] == [sum(g.width for g in TABLE[:i]) for i in range(len(TABLE))]
    assert TABLE[-1].high == DESCRIPTOR_BITS - 1
    assert markdown().count("\n") == len(TABLE) + 2


def test_packing_and_reading_are_inverse() -> None:
    rng = random.Random(3)
    for _ in range(200):
        values = {f.name: rng.choice([f.span.start, f.span.stop - 1, rng.choice(f.span)]) for f in TABLE[1:]}
        values["address"] &= ~15
        header = {"src": rng.randrange(1024), "block": rng.randrange(1 << 14), "len": rng.randrange(1, 65)}
        word = pack_descriptor(header, **values)
        assert {**unpack_descriptor(word), "meta": 0} == {**values, "meta": 0}
        assert header_of(unpack_descriptor(word)["meta"])["src"] == header["src"]
        assert sum(part << 32 * i for i, part in enumerate(words_of(word))) == word


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"beats": 1 << 16}, "got beats = 65536: expected 0 to 65535"),
        ({"step_tag": 8}, "got step_tag = 8: expected -8 to 7"),
        ({"address": 24}, "got a payload at byte 24: expected a multiple of 16"),
        ({"meta": 1}, "unknown descriptor field 'meta'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(values: dict[str, int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        pack_descriptor({"len": 64}, **values)


def test_payload_in_packets_of_no_length_is_refused() -> None:
    with pytest.raises(ScheduleError, match="got 4 payload beats in packets of len = 0"):
        pack_descriptor({}, beats=4)
    assert is_bad(4 << FIELDS["beats"].low)
    assert expand(4 << FIELDS["beats"].low) == []


def test_packets_that_no_queue_takes_in_are_refused() -> None:
    with pytest.raises(ScheduleError, match="got packets of 70 payload beats: a router's queue takes in 64, 6 fewer"):
        pack_descriptor({"len": 70}, beats=140)
    assert MAX_BEATS == SEGMENT_BEATS == RouterModel.max_beats


def test_one_descriptor_is_the_keys_and_values_of_a_layers_blocks() -> None:
    word = pack_descriptor(
        {"op": Op.KV_DATA, "block": 5, "layer": 3, "len": 64},
        **dict(beats=256, address=0x1000, step_address=256, repeat=5, step_half=1, wait_event=7, set_event=9),
        done_tag=77,
    )
    items = expand(word)
    headers = [header_of(item.meta) for item in items]
    assert [(h["block"], h["is_v"], h["tag"]) for h in headers] == [
        (5 + half // 2, half % 2, segment) for half in range(6) for segment in range(4)
    ]
    assert [item.address for item in items] == [0x1000 + 1024 * i for i in range(24)]
    assert [h["flags"] for h in headers] == [0, 0, 0, Flags.LAST] * 6
    assert [item.wait for item in items] == [7] + [0] * 23
    assert [(item.set, item.tag) for item in items] == [(0, 0)] * 23 + [(9, 77)]


def test_a_loop_over_layers_waits_for_each() -> None:
    word = pack_descriptor(
        {"op": Op.STATE, "len": 17, "layer": 30, "tag": 3},
        **dict(beats=17, repeat=2, step_layer=-1, step_address=-17, address=0x2000, step_tag=1),
        **dict(wait_event=1, wait_each=1, set_event=2, set_each=1),
    )
    items = expand(word)
    assert [(header_of(i.meta)["layer"], header_of(i.meta)["tag"]) for i in items] == [(30, 3), (29, 4), (28, 5)]
    assert [(item.wait, item.set) for item in items] == [(1, 2)] * 3
    assert [item.address for item in items] == [0x2000, 0x2000 - 17 * 16, 0x2000 - 34 * 16]


def test_a_message_without_payload_is_one_header() -> None:
    (item,) = expand(pack_descriptor({"op": Op.KV_DRAIN}, done_tag=1))
    assert (item.beats, header_of(item.meta)["flags"], item.tag) == (0, Flags.LAST, 1)
