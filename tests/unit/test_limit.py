import time

import pytest

from mcf.dist.limit import Limit
from mcf.errors import RequestTimeoutError, UserError


def test_no_limit_and_a_running_one():
    assert Limit.start(None) is None
    running = Limit.start(5)
    assert running is not None
    assert Limit.start(running) is running
    assert 0 < running.left_s <= 5


@pytest.mark.parametrize("limit_s", [0, -1, float("nan"), float("inf")])
def test_what_is_no_time_is_refused(limit_s):
    with pytest.raises(UserError, match="expected a number of seconds above 0"):
        Limit.start(limit_s)


def test_its_end_names_phase_and_limit():
    over = Limit(limit_s=1.5, at_s=time.monotonic())
    with pytest.raises(RequestTimeoutError, match=r"^not done within its time limit of 1\.5 s: it ended during decode"):
        over.check("decode")
    assert over.left_s == 0
    Limit(limit_s=1.5, at_s=over.at_s + 1000).check("decode")
