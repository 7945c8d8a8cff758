"""Random legal schedules in the simulator: they end, move the bytes and the memory of the report, and beat no bound."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mcf.policies import NAMES, PlanRequest, plan
from mcf.schedule import Schedule, unicast, verify
from mcf.sim import NAMES as PROFILES
from mcf.sim import bounds, load_profile, simulate
from mcf.testing.strategies import schedules
from plans import LEAST_NODES, requests
from simulated import profile, shape_of

quietly = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
profiles = st.builds(
    profile,
    flops_s=st.sampled_from([1e3, 1e5, 1e9]),
    memory_bytes_s=st.sampled_from([1e2, 1e6]),
    link_bytes_s=st.sampled_from([10.0, 1e4, 1e9]),
    link_latency_s=st.sampled_from([0.0, 1e-3, 1.0]),
    step_overhead_s=st.sampled_from([0.0, 0.5]),
) | st.sampled_from([load_profile(name) for name in PROFILES])


def judge(sched: Schedule, used: object) -> None:
    shape = shape_of(sched)
    for form in (sched, unicast(sched)):
        report, result = verify(form), simulate(form, used, shape=shape)
        assert result.traffic == report.traffic
        assert tuple(result.trace.peak_bytes().values()) == report.peak_bytes
        assert bounds(form, used, shape=shape).bound_s <= result.ttft_s * (1 + 1e-12)


@quietly
@given(schedules(), profiles)
def test_random_schedules(sched: Schedule, used: object) -> None:
    judge(sched, used)


@pytest.mark.parametrize("name", NAMES)
@quietly
@given(asked=requests(), used=profiles)
def test_policies(name: str, asked: PlanRequest, used: object) -> None:
    assume(asked.num_nodes >= LEAST_NODES.get(name, 1))
    judge(plan(name, asked), used)
