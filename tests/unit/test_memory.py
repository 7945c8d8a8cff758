"""Peaks by column arithmetic are those that `verify` replays row by row, for any legal schedule."""

from hypothesis import given, settings

from mcf.schedule import Schedule, unicast, verify
from mcf.schedule.memory import peak_bytes
from mcf.testing import schedules


@given(schedules())
@settings(max_examples=60)
def test_peaks_equal_the_replay(sched: Schedule) -> None:
    for form in (sched, unicast(sched)):
        assert tuple(peak_bytes(form).tolist()) == verify(form).peak_bytes
