"""Random legal schedules in the simulator: they end, move the bytes and the memory of the report, and beat no bound."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mcf.cluster import Cluster, LinkSpec
from mcf.errors import InfeasibleError
from mcf.policies import NAMES, PlanRequest, plan
from mcf.schedule import Schedule, unicast, verify
from mcf.sim import NAMES as PROFILES
from mcf.sim import bounds, load_profile, simulate
from mcf.testing.strategies import schedules
from plans import LEAST_NODES, can_run, requests
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
    """Time, bytes and memory of a schedule and of its unicast form; and the bound where links differ."""
    shape = shape_of(sched)
    own = own_speeds(sched)
    took = simulate(sched, used, shape=shape, cluster=own).ttft_s
    assert bounds(sched, used, shape=shape, cluster=own).bound_s <= took * (1 + 1e-12)
    for form in filter(can_run, (sched, unicast(sched))):
        report, result = verify(form), simulate(form, used, shape=shape)
        assert result.traffic == report.traffic
        assert tuple(result.trace.peak_bytes().values()) == report.peak_bytes
        assert bounds(form, used, shape=shape).bound_s <= result.ttft_s * (1 + 1e-12)


def own_speeds(sched: Schedule) -> Cluster:
    """Every other link is slow, some are quick and far."""
    cluster = Cluster.uniform(sched.meta.topology, sched.meta.num_nodes)
    nodes = range(sched.meta.num_nodes)
    links = [(a, b) for a in (-1, *nodes) for b in (-1, *nodes) if cluster.has_link(a, b)]
    speeds = (LinkSpec(rate_bits_s=80.0), LinkSpec(), LinkSpec(rate_bits_s=1e9, latency_s=0.25))
    return cluster.with_links({link: speeds[(3 * link[0] + 2 * link[1]) % 3] for link in links})


@quietly
@given(schedules(), profiles)
def test_random_schedules(sched: Schedule, used: object) -> None:
    judge(sched, used)


@pytest.mark.parametrize("name", NAMES)
@quietly
@given(asked=requests(), used=profiles)
def test_policies(name: str, asked: PlanRequest, used: object) -> None:
    assume(asked.num_nodes >= LEAST_NODES.get(name, 1))
    try:
        sched = plan(name, asked)
    except InfeasibleError:  # the budget drawn does not hold what the policy needs
        assume(False)
    judge(sched, used)


@quietly
@given(asked=requests(), used=profiles.filter(lambda used: used.port_bytes_s is None))
def test_states_that_merge_on_their_way_beat_no_bound(asked: PlanRequest, used: object) -> None:
    sched = plan("pass-q", asked)
    shape = shape_of(sched)
    result = simulate(sched, used, shape=shape, merges=True)
    assert bounds(sched, used, shape=shape, merges=True).bound_s <= result.ttft_s * (1 + 1e-12)
    assert result.traffic["state"] <= verify(sched).traffic["state"]
