"""The life of one copy of a KV block: one pure transition table. Anything not in it raises (protocol rule: replica
states).
"""

from mcf.errors import ScheduleError

ABSENT, ARRIVING, VALID, DRAINING, STREAMED = 0, 1, 2, 3, 4
STATE_NAMES = {0: "absent", 1: "arriving", 2: "valid", 3: "draining", 4: "valid (stream)"}

TRANSITIONS: dict[tuple[int, str], int] = {
    (ABSENT, "produce"): VALID,
    (ABSENT, "recv"): ARRIVING,
    (ARRIVING, "arrive"): VALID,
    (VALID, "drain"): DRAINING,
    (DRAINING, "free"): ABSENT,
    (ABSENT, "stream"): STREAMED,
    (STREAMED, "release"): ABSENT,
}
READABLE = (VALID, DRAINING, STREAMED)


def next_state(state: int, event: str) -> int:
    """Return the state after `event`; raises ScheduleError for a transition that the table does not have."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        expected = ", ".join(STATE_NAMES[s] for s, e in TRANSITIONS if e == event)
        raise ScheduleError(f"a copy that is {STATE_NAMES[state]} cannot {event}: expected {expected}") from None
