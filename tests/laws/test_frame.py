"""Damaged schedules are refused in one line by `verify`, whatever the damage: never a traceback of another kind."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcf.errors import LawError, ScheduleError, UserError
from mcf.ref import run
from mcf.schedule import Schedule, dump, from_bytes, parse, to_bytes, verify
from mcf.schedule.schedule import Array
from mcf.schedule.steps import COLUMNS, OWNER
from mcf.testing import Recipe, dense_attention, random_qkv, random_schedule

SCHED = random_schedule(
    Recipe(num_nodes=4, prompt_tokens=21, topology="ring", hand_over=True, max_new_tokens=2, seed=3)
)
VALUES = st.sampled_from((-(2**31), -5, -2, -1, 0, 1, 2, 3, 4, 7, 100, 2**31 - 1))


def changed(table: Array, name: str, row: int, value: int) -> Array:
    out = table.copy()
    out[name][row % len(out)] = value
    return out


def right(sched: Schedule) -> bool:
    """A schedule that passes must still give dense attention."""
    tensors = random_qkv(sched.meta)
    return bool(np.abs(run(sched, *tensors).out - dense_attention(*tensors)).max() <= 1e-12)


def refused_or_right(sched: Schedule) -> bool:
    try:
        verify(sched)
    except UserError as error:
        return "\n" not in str(error)
    return right(sched)


@given(name=st.sampled_from(COLUMNS), row=st.integers(0, 10**4), value=VALUES)
@settings(max_examples=150)
def test_any_value_in_any_column(name: str, row: int, value: int) -> None:
    assert refused_or_right(SCHED.replace(steps=changed(SCHED.steps, name, row, value)))


@given(name=st.sampled_from(("chunk", "node", "lo", "hi")), row=st.integers(0, 50), value=VALUES)
@settings(max_examples=60)
def test_any_value_in_any_piece(name: str, row: int, value: int) -> None:
    assert refused_or_right(SCHED.replace(pieces=changed(SCHED.pieces, name, row, value)))


@given(name=st.sampled_from(OWNER.names or ()), row=st.integers(0, 50), value=VALUES)
@settings(max_examples=40)
def test_any_value_in_any_owner(name: str, row: int, value: int) -> None:
    assert refused_or_right(SCHED.replace(owners=changed(SCHED.owners, name, row, value)))


@given(row=st.integers(0, 10**4), value=VALUES)
@settings(max_examples=40)
def test_any_value_in_the_after_table(row: int, value: int) -> None:
    after = SCHED.after.copy()
    after[row % len(after)] = value
    assert refused_or_right(SCHED.replace(after=after))


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ("pieces cover the 21 prompt tokens once", lambda s: s.replace(pieces=s.pieces[1:])),
        ("pieces cover the 21 prompt tokens once", lambda s: s.replace(pieces=s.pieces[:0])),
        ("sorted by chunk, node and place", lambda s: s.replace(pieces=s.pieces[::-1])),
        ("rows are sorted by node", lambda s: s.replace(steps=s.steps[::-1].copy())),
        ("its kind is one of produce, send", lambda s: s.replace(steps=changed(s.steps, "kind", 0, 9))),
        ("its route is one of", lambda s: s.replace(steps=changed(s.steps, "route", 0, 99))),
        ("head group and node exist", lambda s: s.replace(owners=changed(s.owners, "owner", 0, 4))),
    ],
)
def test_the_refusal_says_what_was_expected(text: str, damage: Callable[[Schedule], Schedule]) -> None:
    with pytest.raises(LawError, match=text) as caught:
        verify(damage(SCHED))
    assert caught.value.law == "spec"


@given(at=st.integers(0, 10**6), letter=st.sampled_from("0123456789:,=>- cmhnqz"))
@settings(max_examples=100)
def test_text_with_one_wrong_letter(at: int, letter: str) -> None:
    text = dump(SCHED)
    at %= len(text)
    sched = parse_or_none(text[:at] + letter + text[at + 1 :])
    assert sched is None or sched == SCHED or refused_or_right(sched)


def parse_or_none(text: str) -> Schedule | None:
    try:
        return parse(text)
    except ScheduleError as error:
        return None if "\n" not in str(error) else SCHED.replace(routes=())


@given(at=st.integers(0, 10**6), mask=st.integers(1, 255))
@settings(max_examples=60)
def test_bytes_with_one_wrong_byte(at: int, mask: int) -> None:
    data = bytearray(to_bytes(SCHED))
    data[at % len(data)] ^= mask
    sched = bytes_or_none(bytes(data))
    assert sched is None or refused_or_right(sched)


def bytes_or_none(data: bytes) -> Schedule | None:
    try:
        return from_bytes(data)
    except ScheduleError:
        return None
