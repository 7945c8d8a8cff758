"""The bytes form: reads back, and anything cut, longer or damaged is refused in one line."""

import json
from dataclasses import replace

import numpy as np
import pytest

from mcf.errors import ScheduleError
from mcf.policies import plan
from mcf.schedule import Schedule, digest, dump, from_bytes, parse, to_bytes, verify
from mcf.testing import Recipe, random_schedule
from simulated import asked, tiny_shape

SCHED = random_schedule(Recipe(prompt_tokens=13, topology="ring", hand_over=True, max_new_tokens=2, seed=7))
DATA = to_bytes(SCHED)
META = json.loads(DATA[16 : 16 + int.from_bytes(DATA[8:16], "little")])["meta"]
HEAD = 16 + int.from_bytes(DATA[8:16], "little")


def boundaries() -> list[int]:
    """Ends of the magic, the length, the head, and of each array."""
    arrays = (SCHED.pieces, SCHED.owners, SCHED.steps, SCHED.after)
    return [0, 1, 7, 8, 9, 15, 16, 17, HEAD - 1, *(HEAD + np.cumsum([0, *(a.nbytes for a in arrays)])).tolist()]


def with_head(**changes: object) -> bytes:
    """The same arrays behind another head."""
    head = json.loads(DATA[16:HEAD]) | changes
    text = json.dumps(head).encode()
    return DATA[:8] + len(text).to_bytes(8, "little") + text + DATA[HEAD:]


def test_reads_back() -> None:
    assert from_bytes(DATA) == SCHED
    assert to_bytes(from_bytes(DATA)) == DATA
    assert len(SCHED.owners)
    assert len(SCHED.routes)


def test_an_empty_schedule_reads_back() -> None:
    bare = SCHED.replace(steps=SCHED.steps[:0], after=SCHED.after[:0], owners=SCHED.owners[:0], routes=())
    assert from_bytes(to_bytes(bare)) == bare


@pytest.mark.parametrize("size", [s for s in boundaries() if s < len(DATA)])
def test_a_cut_schedule_is_refused(size: int) -> None:
    for data in (DATA[:size], DATA[: size + 1] if size + 1 < len(DATA) else DATA[:-1]):
        with pytest.raises(ScheduleError) as caught:
            from_bytes(data)
        assert "\n" not in str(caught.value)


def test_a_longer_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected"):
        from_bytes(DATA + b"\0")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"mcf-schedule 1\nmeta policy=x\n", b"\0" * 64])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ScheduleError, match="magic number"):
        from_bytes(data)


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": [1, 2]},
        {"counts": [-1, 0, 0, 0]},
        {"counts": "many"},
        {"counts": [2**62, 0, 0, 0]},
        {"routes": 3},
        {"routes": [[1]]},
        {"meta": {}},
        {"meta": []},
        {"meta": {"policy": "x", "num_nodes": 0}},
        {"meta": META | {"num_nodes": 2.5}},
        {"meta": META | {"num_nodes": True}},
        {"meta": META | {"num_nodes": 2**40}},
        {"meta": META | {"policy": 3}},
        {"meta": META | {"budgets": [1.5, 2, 3]}},
        {"meta": META | {"unknown": 1}},
        {"meta": META | {"max_new_tokens": -1}},
    ],
)
def test_a_damaged_head_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ScheduleError) as caught:
        from_bytes(with_head(**changes))
    assert "\n" not in str(caught.value)


def test_a_head_that_is_no_object_is_refused() -> None:
    for text in (b"[]", b"7", b"{", b"\xff\xfe"):
        with pytest.raises(ScheduleError):
            from_bytes(DATA[:8] + len(text).to_bytes(8, "little") + text)


def test_a_huge_head_length_is_refused() -> None:
    with pytest.raises(ScheduleError):
        from_bytes(DATA[:8] + (2**63).to_bytes(8, "little") + DATA[16:])


def test_no_flipped_byte_goes_unseen() -> None:
    for at in range(0, len(DATA), 97):
        data = DATA[:at] + bytes([DATA[at] ^ 0x41]) + DATA[at + 1 :]
        assert digest(data) != digest(DATA)
        assert read_or_none(data) != SCHED


def read_or_none(data: bytes) -> Schedule | None:
    """The schedule, or None where it is refused."""
    try:
        return from_bytes(data)
    except ScheduleError:
        return None


def test_digest_is_sha256_of_the_bytes() -> None:
    assert digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_int4_kv_reads_back_in_both_forms_and_halves_the_bytes() -> None:
    half = plan("mars-paper", asked(replace(tiny_shape(), kv_bytes=0.5), 3, 200, 60))
    whole = plan("mars-paper", asked(replace(tiny_shape(), kv_bytes=1), 3, 200, 60))
    assert from_bytes(to_bytes(half)) == half == parse(dump(half))
    mine, theirs = verify(half), verify(whole)
    assert {name: 2 * size for name, size in mine.traffic.items()} == theirs.traffic
    assert [2 * size for size in mine.peak_bytes] == list(theirs.peak_bytes)


@pytest.mark.parametrize("kv_bytes", [0.25, 1.5, 0, -1])
def test_no_other_fraction_of_a_byte_is_an_element(kv_bytes: float) -> None:
    with pytest.raises(ScheduleError, match="kv_bytes"):
        from_bytes(with_head(meta=META | {"kv_bytes": kv_bytes}))
