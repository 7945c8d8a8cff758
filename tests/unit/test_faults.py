import pytest

from mcf.dist import faults
from mcf.dist.faults import Fault
from mcf.errors import UserError


@pytest.fixture(autouse=True)
def _disarm():
    yield
    faults.arm(0, "")


def test_faults_are_read():
    text = "kill:rank=1:phase=prefill:n=3, stop:rank=0:phase=joining"
    assert faults.parse(text) == (
        Fault(action="kill", rank=1, phase="prefill", n=3),
        Fault(action="stop", rank=0, phase="joining", n=1),
    )
    assert faults.parse(" ") == ()


@pytest.mark.parametrize(
    "text",
    [
        "explode:rank=1:phase=prefill",
        "kill:rank=1",
        "kill:phase=prefill",
        "kill:rank=-1:phase=prefill",
        "kill:rank=1:phase=",
        "kill:rank=1:phase=prefill:n=x",
        "kill:rank=1:phase=prefill:where=here",
        "kill",
    ],
)
def test_bad_faults_are_refused(text):
    with pytest.raises(UserError, match="MCF_FAULT has .*expected action:rank=R:phase=NAME"):
        faults.parse(text)


def test_a_fault_strikes_its_rank_at_the_nth_time_and_once():
    faults.arm(1, "raise:rank=1:phase=prefill:n=2,raise:rank=0:phase=decode")
    faults.point("prefill")
    faults.point("decode")
    with pytest.raises(RuntimeError, match="MCF_FAULT"):
        faults.point("prefill")
    faults.point("prefill")
    assert faults.parse("") == ()


def test_arming_again_counts_from_the_start():
    faults.arm(0, "raise:rank=0:phase=x:n=2")
    faults.point("x")
    faults.arm(0, "raise:rank=0:phase=x:n=2")
    faults.point("x")
    with pytest.raises(RuntimeError, match="MCF_FAULT"):
        faults.point("x")
