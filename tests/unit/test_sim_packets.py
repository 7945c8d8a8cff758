"""Packets: ports of nodes, headers, shared links, orders; and what such profiles refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from mcf.cluster import Cluster, Topology
from mcf.errors import UserError
from mcf.policies import NAMES, PlanRequest, plan
from mcf.schedule import Schedule, verify
from mcf.schedule.steps import PREFILL, RECV
from mcf.sim import LinkChange, Profile, bounds, load_profile, rates_of, simulate
from mcf.sim.messages import num_descriptors, num_packets
from mcf.sim.states import states_s
from mcf.testing.drawing import random_schedule
from mcf.testing.policies import TINY
from mcf.testing.recipe import Recipe
from mcf.testing.strategies import recipes
from simulated import asked, profile, shape_of, tiny_shape

HARDWARE = load_profile("kr260-rtl")
FAST = replace(HARDWARE, flops_s=1e30, attention_flops_s=1e30, memory_bytes_s=1e30)


def wired(**changes: float) -> Profile:
    """A port of 64 bytes/s each way, and computing in no time."""
    numbers = {"flops_s": 1e30, "link_latency_s": 0.0, "port_bytes_s": 64.0}
    return profile(**(numbers | changes))


def planned(policy: str, topology: str) -> Schedule:
    cluster = Cluster.uniform(topology, 4)
    return plan(policy, PlanRequest(shape=TINY, cluster=cluster, prompt_tokens=1024, chunk_tokens=512))


def test_a_payload_by_hand() -> None:
    """128 bytes of KV: two descriptors of 3 s and a doorbell of 1, four packets of 32 bytes with headers of 16.

    A header takes 0.25 s, a packet 0.75; a router knows after three headers where a packet goes, and lets it go after
    three more: packets as short as these leave 1.5 s apart. The hop takes 2 s in all. A packet is stored whole on both
    sides.
    """
    numbers = {"descriptor_s": 3.0, "doorbell_s": 1.0, "delivery_s": 7.0, "link_latency_s": 2.0}
    used = wired(packet_bytes=32.0, header_bytes=16.0, **numbers)
    shape = tiny_shape()
    sched = plan("ring", asked(shape, 2, 8, 8, "mesh:2x1"))
    events = simulate(sched, used, shape=shape).trace.events
    moved = events[events["payload_bytes"] > 0]
    assert moved["payload_bytes"].tolist() == [128, 128]
    look, hop, store = 6 * 0.25, 2.0 - 6 * 0.25, 3 * 0.25
    posted = (3.0 + 1.0) + 7.0 + look + hop + look + 0.25 + store + 0.25
    start = posted + (2 * 3.0 + 1.0) + 7.0 / 2 + 0.5 + look
    assert moved["t_start"] == pytest.approx([start] * 2)
    assert moved["t_end"] == pytest.approx([start + 3 * look + 0.75 + hop] * 2)
    end = start + 3 * look + hop + look + 0.75 + store + 0.75 + 7.0 / 2
    assert events["t_end"].max() == pytest.approx(end, abs=0.3)  # the router may be busy with a packet of its own


@pytest.mark.parametrize("topology", ["switch", "mesh:2x2", "ring"])
def test_a_nodes_port_carries_all_that_it_receives(topology: str) -> None:
    sched = planned("one-shot", topology)
    received = max(
        sum(int(sched.row_bytes[sched.steps["ref"][row]]) for row in rows if sched.steps["kind"][row] == RECV)
        for rows in ([r for r in sched.node_rows(n) if sched.steps["stage"][r] == PREFILL] for n in range(4))
    )
    took = float(simulate(sched, wired(), shape=TINY).trace.events["t_end"].max())
    assert took >= TINY.num_layers * received / 64.0 - 1e-6
    if topology == "mesh:2x2":  # two links each way, and one port
        assert took > 1.3 * simulate(sched, replace(wired(), port_bytes_s=None), shape=TINY).ttft_s


def test_descriptors_are_counted_by_head_half_and_row_of_blocks() -> None:
    """Blocks 0 and 7 are one row of two; 0, 1, 14 and 15 are two rows. Two heads, keys and values."""
    assert [num_descriptors(planned(policy, "mesh:2x2"), 2) for policy in ("zigzag", "one-shot")] == [4, 8]


def test_packets_are_counted_by_message() -> None:
    """A message of 64 tokens, a head and a half is 1,024 bytes."""
    sched = planned("zigzag", "mesh:2x2")
    assert int(sched.row_bytes[2]) == 8 * 1024
    assert [num_packets(sched, 2, size) for size in (1024.0, 1000.0, 4096.0)] == [8, 16, 8]


@settings(max_examples=10, deadline=None)
@given(recipes())
def test_no_simulated_time_is_below_a_bound_and_bytes_are_those_of_verify(recipe: Recipe) -> None:
    sched = random_schedule(recipe)
    shape = shape_of(sched)
    result = simulate(sched, HARDWARE, shape=shape)
    assert bounds(sched, HARDWARE, shape=shape).bound_s <= result.ttft_s * (1 + 1e-9)
    assert result.traffic == {name: verify(sched).traffic[name] for name in result.traffic}
    assert max(result.link_loads.values(), default=0.0) <= 1 + 1e-9


@pytest.mark.parametrize("policy", NAMES)
def test_extrapolated_layers_and_repetition(policy: str) -> None:
    shape = replace(TINY, num_layers=10)
    cluster = Cluster.uniform("switch", 4)
    sched = plan(policy, PlanRequest(shape=shape, cluster=cluster, prompt_tokens=1024, chunk_tokens=512))
    whole, few = simulate(sched, FAST, shape=shape), simulate(sched, FAST, shape=shape, layers=6)
    assert few.ttft_s == pytest.approx(whole.ttft_s, rel=0.1)
    assert np.array_equal(simulate(sched, FAST, shape=shape).trace.events, whole.trace.events)
    assert whole.fold is None


def test_what_packets_cannot_model_is_refused() -> None:
    sched = planned("pass-q", "switch")
    with pytest.raises(UserError, match=r"got states that merge .* expected a profile without port_bytes_s"):
        simulate(sched, HARDWARE, shape=TINY, merges=True)
    with pytest.raises(UserError, match="got links that change"):
        simulate(sched, HARDWARE, shape=TINY, changes=[LinkChange(link=(0, -1), factor=0.5)])
    with pytest.raises(UserError, match="got descriptor_s in profile 'test': expected port_bytes_s beside it"):
        profile(descriptor_s=1.0)
    with pytest.raises(UserError, match="got doorbell_s in profile 'test': expected port_bytes_s beside it"):
        profile(doorbell_s=1.0)
    with pytest.raises(UserError, match="expected both"):
        profile(port_bytes_s=1.0, header_bytes=1.0)


def test_the_last_states_of_a_token_by_hand() -> None:
    """Two nodes, one head: fetched, to the root, merged while it comes in, to both; the record itself does not count.

    A number takes 0.25 s, as a header; a state of 8 numbers of 2 bytes and a beat 0.5 s, its packet 0.75.
    """
    numbers = {"delivery_s": 7.0, "link_latency_s": 2.0, "merge_s": 4.0}
    used = wired(packet_bytes=32.0, header_bytes=16.0, **numbers)
    look, hop, store, numbers_s, packet = 6 * 0.25, 2.0 - 6 * 0.25, 3 * 0.25, 0.5, 0.75
    up = 3.5 + numbers_s + look + hop + look + packet + store + packet
    down = look + hop + look + packet + store + packet + 3.5
    mesh = Topology.parse("mesh:2x1", 2)
    assert states_s(mesh, used, num_heads=1, head_dim=8) == pytest.approx(up - packet + 4.0 + down - packet)
    more = [states_s(Topology.parse("mesh:4x4", 16), HARDWARE, num_heads=n, head_dim=128) for n in (1, 6)]
    assert 16 * 4 < more[0] * 200e6 < more[1] * 200e6 < 16 * 6 * 18
    assert states_s(Topology.parse("switch", 1), used, num_heads=1, head_dim=8) == 0.0
    assert states_s(Topology.parse("switch", 4), used, num_heads=1, head_dim=8) > up


def test_plans_count_headers_and_ports() -> None:
    rates = rates_of(HARDWARE, Cluster.uniform("mesh:2x2", 4))
    assert pytest.approx(16 * 200e6 * 64 / 65) == rates.BW


def test_the_assumed_clock_is_in_the_label() -> None:
    assert HARDWARE.label == "kr260-rtl (200 MHz assumed)"
    assert not HARDWARE.physical
    assert load_profile("kr260-physical").label == "kr260-physical"
