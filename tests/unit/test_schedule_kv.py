"""The life of a copy: every pair of state and event is in the table or raises."""

from itertools import product

import pytest

from mcf.errors import ScheduleError
from mcf.schedule.kv import ABSENT, ARRIVING, DRAINING, READABLE, STATE_NAMES, STREAMED, TRANSITIONS, VALID, next_state

EVENTS = ("produce", "recv", "arrive", "drain", "free", "stream", "release")
TABLE = {
    (ABSENT, "produce"): VALID,
    (ABSENT, "recv"): ARRIVING,
    (ARRIVING, "arrive"): VALID,
    (VALID, "drain"): DRAINING,
    (DRAINING, "free"): ABSENT,
    (ABSENT, "stream"): STREAMED,
    (STREAMED, "release"): ABSENT,
}


@pytest.mark.parametrize(("state", "event"), list(product(STATE_NAMES, EVENTS)))
def test_every_pair_is_in_the_table_or_raises(state: int, event: str) -> None:
    if (state, event) in TABLE:
        assert next_state(state, event) == TABLE[state, event]
        return
    with pytest.raises(ScheduleError) as caught:
        next_state(state, event)
    assert f"a copy that is {STATE_NAMES[state]} cannot {event}" in str(caught.value)
    assert "expected" in str(caught.value)


def test_the_table_has_no_other_transition() -> None:
    assert TRANSITIONS == TABLE


def test_a_copy_can_be_read_unless_it_is_absent_or_on_its_way() -> None:
    assert set(READABLE) == set(STATE_NAMES) - {ABSENT, ARRIVING}


def test_an_unknown_event_raises() -> None:
    with pytest.raises(ScheduleError, match="cannot explode"):
        next_state(VALID, "explode")
