"""The simulator: tiny cases by hand, bytes and memory as `verify` counts them, published volumes, the 41 seconds."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from mcf.cluster import Cluster
from mcf.errors import RunError, UserError
from mcf.model import ModelShape
from mcf.policies import NAMES, plan
from mcf.schedule import unicast, verify
from mcf.schedule.steps import ATTEND, COMPUTE, KV, MERGE, PREFILL, PRODUCE, RECV, SEND
from mcf.schedule.verify import num_hops
from mcf.sim import Profile, SimResult, bounds, load_profile, simulate
from mcf.sim.cost import head_seconds, row_seconds, visible_pairs
from mcf.sim.events import LEAVE, LEAVE_AHEAD
from mcf.sim.machine import Machine
from mcf.sim.network import Network
from mcf.trace import Trace, to_perfetto
from mcf.trace.columns import Table
from plans import pairs_of
from simulated import QWEN, asked, profile, tiny_shape

every_policy = pytest.mark.parametrize("name", NAMES)
every_topology = pytest.mark.parametrize("topology", ["switch", "ring"])
KIB = 1024


def events(result: SimResult, **columns: int) -> Table:
    table = result.trace.events
    keep = np.ones(len(table), dtype=bool)
    for name, value in columns.items():
        keep &= table[name] == value
    return table[keep]


def times(table: Table) -> list[tuple[float, float]]:
    return [(round(a, 9), round(b, 9)) for a, b in zip(table["t_start"].tolist(), table["t_end"].tolist(), strict=True)]


# --- by hand ---


def test_gather_of_one_chunk_by_hand() -> None:
    """Both nodes have 4 of 8 tokens: 2 * 192 * 4 / 1000 s of dense work, 4 tokens * 32 bytes over 64 bytes/s."""
    shape = tiny_shape()
    result = simulate(plan("gather", asked(shape, 2, 8, 8)), profile(), shape=shape)
    for node in (0, 1):
        assert times(events(result, node=node, kind=PRODUCE, wait=0)) == [(0, 1.536)]
        assert times(events(result, node=node, kind=SEND)) == [(1.536, 1.536 + 2 + 0.5)]
        # own tokens: 10 visible pairs * 4 * 4 * 2 operations; the other's: 8 pairs, once they are here
        assert times(events(result, node=node, kind=ATTEND, wait=0)) == [(1.536, 1.856), (4.036, 4.292)]
        assert times(events(result, node=node, kind=MERGE, wait=0)) == [(4.292, 4.548)]
        assert times(events(result, node=node, wait=1)) == [(1.856, 4.036)]
    assert result.finish_s == pytest.approx((4.548, 4.548), abs=1e-12)
    assert result.ttft_s == pytest.approx(4.548 + 2 * 64 / 1000, abs=1e-12)
    assert result.link_busy_s == {(-1, 0): 2.0, (-1, 1): 2.0, (0, -1): 2.0, (1, -1): 2.0}
    assert result.link_bytes == {(0, 1, "new_kv"): 128, (1, 0, "new_kv"): 128}


def test_ring_of_one_chunk_by_hand() -> None:
    """Node 0 has the first 4 tokens and sees nobody's, but takes its step of the round; node 1 sees all of node 0's."""
    shape = tiny_shape()
    result = simulate(plan("ring", asked(shape, 2, 8, 8, "ring")), profile(), shape=shape)
    assert times(events(result, node=0, kind=ATTEND, wait=0)) == [(1.536, 1.856), (4.036, 4.036)]
    assert times(events(result, node=0, kind=MERGE, wait=0)) == [(4.036, 4.292)]
    assert times(events(result, node=1, kind=ATTEND, wait=0)) == [(1.536, 1.856), (4.036, 4.548)]
    assert times(events(result, node=1, kind=MERGE, wait=0)) == [(4.548, 4.804)]
    assert result.finish_s == pytest.approx((4.292, 4.804), abs=1e-12)


def test_memory_bound_rows_take_their_bytes() -> None:
    shape = tiny_shape()
    slow = profile(flops_s=1e15, memory_bytes_s=100.0, link_bytes_s=1e15, link_latency_s=0.0, step_overhead_s=0.25)
    result = simulate(plan("gather", asked(shape, 1, 8, 8)), slow, shape=shape)
    # 192 weights of a byte; 8 tokens * 32 bytes; one state in and one out of 8 tokens * 2 heads * 6 floats
    assert times(events(result, lane=COMPUTE, wait=0)) == [(0, 2.17), (2.17, 4.98), (4.98, 12.91)]


def test_a_receivers_port_serves_one_after_the_other_ties_by_row() -> None:
    """Three equal nodes send at the same moment: each port takes the lower receive first."""
    shape = tiny_shape()
    result = simulate(plan("gather", asked(shape, 3, 12, 12)), profile(flops_s=1e15), shape=shape)
    sched = plan("gather", asked(shape, 3, 12, 12))
    recvs = np.flatnonzero((sched.steps["kind"] == RECV) & (sched.steps["stage"] == PREFILL))
    for node in range(3):
        order = [int(sched.steps["dst"][row]) for row in recvs if sched.steps["node"][row] == node]
        into = events(result, kind=SEND, peer=node)
        assert into["node"].tolist() == order
        assert into["t_start"].round(6).tolist() == [0.0, 2.0]


def test_equal_times_go_by_rank_then_by_row() -> None:
    """What the running layer needs asks before what is fetched ahead, whoever asked first; then the lower row."""
    shape = tiny_shape(2)
    sched = plan("gather", asked(shape, 4, 32, 16, "ring"))
    network = Network(Cluster.uniform("ring", 4), profile())
    machine = Machine(sched, network, row_seconds(sched, shape, profile()).tolist(), 2)
    s = sched.steps
    recvs = np.flatnonzero((s["kind"] == RECV) & (s["payload"] == KV) & (s["chunk"] == 1)).tolist()
    for row in sorted(recvs, reverse=True):
        machine.transfers.post(row * 2, 1.0)
        machine.transfers._request(row * 2, 1.0)
    got = [rank_inst[1:] for rank_inst in sorted(machine.heap)]
    expected = [(LEAVE + (int(s["ahead"][row]) > 0), row * 2) for row in recvs]
    assert got == sorted(expected)
    assert {rank for rank, _ in got} == {LEAVE, LEAVE_AHEAD}


def test_bounds_by_hand() -> None:
    """The case of `test_gather_of_one_chunk_by_hand`: 36 visible pairs, 128 bytes into each node, one layer."""
    shape = tiny_shape()
    found, head = bounds(plan("gather", asked(shape, 2, 8, 8)), profile(), shape=shape), 0.128
    assert found.compute_s == pytest.approx(head + (2 * 192 * 8 + 4 * 4 * 2 * 36) / 2 / 1000)
    assert found.weights_s == pytest.approx(head + 192 / 1e15)
    assert (found.inbound_s, found.bisection_s, found.latency_s) == pytest.approx((head + 2, head + 2, head + 0.5))
    assert found.kv_bytes == 4 * 32
    assert (found.limit, found.bound_s) == ("compute", found.compute_s)


@pytest.mark.parametrize(("name", "num_nodes"), pairs_of(NAMES, [1, 3, 4]))
def test_no_plan_holds_less_than_the_memory_bound(name: str, num_nodes: int) -> None:
    shape = tiny_shape(2)
    sched = plan(name, replace(asked(shape, num_nodes, 205, 70), max_new_tokens=90))
    found = bounds(sched, profile(), shape=shape).kv_bytes
    assert found == -(-(205 + 90) * 2 * 32 // num_nodes) <= max(verify(sched).peak_bytes)


@pytest.mark.parametrize("name", ["mars", "mars-paper"])
def test_copies_that_retire_early_cost_no_time_where_arithmetic_is_the_limit(name: str) -> None:
    """And memory is back before the end: in the last chunk the fullest node holds less, in the simulated trace too."""
    shape = replace(QWEN, num_layers=4)
    used = profile(flops_s=1e9, link_bytes_s=1e9, link_latency_s=1e-6)
    ran, late = {}, {}
    for W in (0, 3):
        more = {"alpha": math.inf, "drain_chunks": W}
        ran[W] = simulate(plan(name, replace(asked(shape, 4, 2048, 256), **more)), used, shape=shape)
        memory = ran[W].trace.memory
        late[W] = int(memory["bytes_in_use"][memory["chunk"] == 7].max())
    assert ran[3].ttft_s == pytest.approx(ran[0].ttft_s, rel=0.01)
    assert sum(ran[3].traffic.values()) > sum(ran[0].traffic.values())
    assert late[3] < 0.7 * late[0]


def test_latency_adds_up_where_nodes_need_each_other_in_every_layer() -> None:
    shape = tiny_shape(5)
    slow = profile(flops_s=1e15, link_bytes_s=1e15)
    mutual, one_way = (plan(name, asked(shape, 2, 24, 8)) for name in ("gather", "ring"))
    assert bounds(mutual, slow, shape=shape).latency_s == pytest.approx((3 * 4 + 1) * 0.5)
    assert bounds(one_way, slow, shape=shape).latency_s == pytest.approx(head_seconds(shape, slow))
    assert simulate(mutual, slow, shape=shape).ttft_s == pytest.approx(3 * 5 * 0.5, rel=0.1)


# --- against verify and brute force ---


@every_topology
@pytest.mark.parametrize(("name", "num_nodes"), pairs_of(NAMES, [1, 2, 3, 6]))
def test_bytes_and_memory_are_those_of_the_report(name: str, topology: str, num_nodes: int) -> None:
    shape = tiny_shape(3)
    sched = plan(name, asked(shape, num_nodes, 203, 50, topology))
    for form in (sched, unicast(sched)):
        report, result = verify(form), simulate(form, profile(), shape=shape)
        assert result.traffic == report.traffic
        assert tuple(result.trace.peak_bytes().values()) == report.peak_bytes
        assert sum(result.link_bytes.values()) == sum(report.traffic.values())
        assert bounds(form, profile(), shape=shape).bound_s <= result.ttft_s


@every_policy
def test_pairs_are_those_of_the_positions(name: str) -> None:
    sched = plan(name, asked(tiny_shape(), 3, 50, 17))
    pairs = visible_pairs(sched)

    def positions(c_lo: int, c_hi: int, m_lo: int, m_hi: int) -> np.ndarray:
        spans = [span for c in range(c_lo, c_hi) for m in range(m_lo, m_hi) for span in sched.spans(c, m)]
        return np.concatenate([np.arange(lo, hi) for lo, hi in spans]) if spans else np.empty(0)

    rows = np.flatnonzero((sched.steps["kind"] == ATTEND) & (sched.steps["stage"] == PREFILL))
    assert len(rows)
    for row in rows.tolist():
        r = sched.step(row)
        queries, keys = positions(r.chunk, r.chunk + 1, r.q, r.q + 1), positions(r.c_lo, r.c_hi, r.m_lo, r.m_hi)
        assert pairs[row] == (queries[:, None] >= keys[None, :]).sum()
    assert pairs.sum() == 50 * 51 // 2


@every_policy
def test_rows_of_a_lane_start_in_list_order(name: str) -> None:
    result = simulate(plan(name, asked(tiny_shape(3), 4, 128, 32)), profile(), shape=tiny_shape(3))
    for node in range(4):
        lane = events(result, node=node, lane=COMPUTE, wait=0)
        assert (lane["t_start"][1:] >= lane["t_end"][:-1]).all()


def test_the_same_arguments_give_the_same_trace() -> None:
    shape = tiny_shape(3)
    sched = plan("mars-paper", asked(shape, 4, 128, 32))
    first, second = (simulate(sched, profile(), shape=shape) for _ in range(2))
    assert first.trace.to_bytes() == second.trace.to_bytes()


# --- volumes and times of the paper ---


@pytest.mark.parametrize("name", ["ring", "zigzag"])
@pytest.mark.parametrize(("num_nodes", "published"), [(2, 1.94), (4, 2.99), (8, 3.70), (16, 4.40)])
def test_ring_volumes_of_table_1(name: str, num_nodes: int, published: float) -> None:
    """16K tokens, 256 per node and chunk, INT4 KV: half a byte per element, and `kv_bytes` is whole: elements count."""
    exact = {2: 1.9378, 4: 2.9947, 8: 3.6994, 16: 4.4040}[num_nodes]
    sched = plan(name, asked(QWEN, num_nodes, 16 * KIB, 256 * num_nodes, "ring"))
    s = sched.steps
    sent = (sched.row_elements * num_hops(sched))[(s["kind"] == SEND) & (s["stage"] == PREFILL)].sum()
    elements = int(sent) * QWEN.num_layers
    rounds = 64 // num_nodes
    assert elements == 16 * KIB * 2 * 28 * 2 * 128 * (num_nodes - 1) * Fraction(rounds + 1, 2)
    assert round(elements / 2 / 1e9, 4) == exact
    assert abs(exact - published) < 0.005
    result = simulate(sched, load_profile("kr260-physical"), shape=QWEN, layers=4)
    assert sum(result.traffic.values()) == elements * QWEN.kv_bytes


@pytest.mark.parametrize("name", ["gather", "full", "mars-paper"])
def test_16k_on_16_boards_takes_41_seconds_and_arithmetic_is_why(name: str) -> None:
    board = load_profile("kr260-physical")
    sched = plan(name, asked(QWEN, 16, 16 * KIB, 256 * 16))
    result, least = simulate(sched, board, shape=QWEN, layers=4), bounds(sched, board, shape=QWEN)
    linear = 2 * 28 * QWEN.num_layer_weights * 16 * KIB
    attention = 4 * 28 * 12 * 128 * (16 * KIB) * (16 * KIB + 1) // 2
    assert (linear + attention) / 16 / 100e9 == pytest.approx(41.27, abs=0.01)
    assert least.limit == "compute"
    assert least.compute_s == pytest.approx((linear + attention) / 16 / 100e9, abs=0.01)
    assert 1 <= result.ttft_s / least.compute_s < 1.01
    assert max(least.weights_s, least.inbound_s, least.bisection_s, least.latency_s) < 2


def closed_form(used: Profile, num_nodes: int, chunk: int, fetched: bool) -> float:
    """The model of the design notes on a switch: per chunk the longer of L layers of work and of all that comes in.

    A layer is its dense work, the longer of attention and the way of the new KV, and a latency.
    """
    ml, total = QWEN.kv_token_layer_bytes, head_seconds(QWEN, used)
    for history in range(0, 16 * KIB, chunk):
        mine = chunk / num_nodes
        work = 2 * QWEN.num_layer_weights * mine / used.flops_s
        dense = max(work, QWEN.num_layer_weights * used.weight_bytes / used.memory_bytes_s)
        work = 4 * 12 * 128 * mine * (history + chunk / 2) / used.flops_s
        attention = max(work, (history + chunk) * ml / used.memory_bytes_s)
        new, stream = (chunk - mine) * ml, history * ml * (num_nodes - 1) / num_nodes * fetched
        layer = dense + max(attention, new / used.link_bytes_s) + used.link_latency_s
        total += 28 * max(layer, (stream + new) / used.link_bytes_s)
    return total


@pytest.mark.parametrize("preset", ["cpu-1g", "cpu-50m", "gpu-10g", "gpu-100g", "kr260-physical"])
@pytest.mark.parametrize("num_nodes", [2, 4, 16])
@pytest.mark.parametrize("name", ["full", "gather"])
def test_simulated_over_closed_form_is_within_a_band(name: str, num_nodes: int, preset: str) -> None:
    """Seen are 1.00 to 1.20: the closed form knows no merges, no step overhead, and no link that waits for its turn."""
    used, chunk = load_profile(preset), 256 * num_nodes
    sched = plan(name, asked(QWEN, num_nodes, 16 * KIB, chunk))
    took = simulate(sched, used, shape=QWEN, layers=4).ttft_s
    assert 0.99 < took / closed_form(used, num_nodes, chunk, name == "gather") < 1.25


# --- what a trace tells ---


def test_a_simulated_trace_is_a_trace() -> None:
    shape = tiny_shape(3)
    result = simulate(plan("mars-paper", asked(shape, 3, 96, 24)), profile(), shape=shape)
    assert Trace.from_bytes(result.trace.to_bytes()).meta == result.trace.meta
    assert result.trace.meta["executor"] == "sim"
    assert {event["ph"] for event in to_perfetto(result.trace)["traceEvents"]} == {"X", "C", "M"}
    for node in range(3):
        end = float(events(result, node=node, lane=COMPUTE)["t_end"].max())
        parts = result.trace.breakdown(node, 0.0, end)
        assert parts["other_s"] == pytest.approx(0, abs=1e-9)
        assert parts["compute_s"] + parts["exposed_communication_s"] == pytest.approx(end)


# --- layers that are extrapolated ---


@every_policy
@pytest.mark.parametrize("preset", ["cpu-1g", "gpu-10g", "gpu-100g"])
def test_extrapolated_times_are_near_and_bytes_exact(name: str, preset: str) -> None:
    sched = plan(name, asked(QWEN, 4, 4 * KIB, KIB))
    every = simulate(sched, load_profile(preset), shape=QWEN)
    few = simulate(sched, load_profile(preset), shape=QWEN, layers=6)
    assert few.is_extrapolated
    assert not every.is_extrapolated
    assert few.simulated_layers == 6
    assert few.traffic == every.traffic
    assert few.link_bytes == every.link_bytes
    assert few.link_busy_s == pytest.approx(dict(every.link_busy_s))
    assert few.ttft_s == pytest.approx(every.ttft_s, rel=0.02)


# --- anomalies and refusals ---


@every_policy
@every_topology
def test_faster_links_take_no_longer(name: str, topology: str) -> None:
    """But for anomalies of less than 2 %: first come, first served may turn an order of transfers to the worse."""
    shape = tiny_shape(3)
    sched = plan(name, asked(shape, 5, 200, 60, topology))
    took = [simulate(sched, profile(link_bytes_s=2.0**n), shape=shape).ttft_s for n in range(2, 14)]
    assert all(fast <= slow * 1.02 for slow, fast in pairwise(took))
    assert took[-1] < took[0]


@pytest.mark.parametrize(
    ("shape", "layers", "says"),
    [
        (tiny_shape(5), 3, "got layers = 3: expected at least 4"),
        (tiny_shape(4), None, "num_layers = 4: expected 5"),
    ],
)
def test_refusals(shape: ModelShape, layers: int | None, says: str) -> None:
    sched = plan("gather", asked(tiny_shape(5), 2, 8, 8))
    with pytest.raises(UserError, match=says):
        simulate(sched, profile(), shape=shape, layers=layers)


def test_a_schedule_that_verify_would_refuse_does_not_hang() -> None:
    shape = tiny_shape()
    sched = plan("gather", asked(shape, 2, 8, 8))
    merge = int(np.flatnonzero(sched.steps["kind"] == MERGE)[0])
    after = sched.after.copy()
    after[sched.steps["after_lo"][merge]] = merge  # it stands after itself
    with pytest.raises(RunError, match=f"at row {merge}: expected a schedule that `verify` has passed"):
        simulate(sched.replace(after=after), profile(), shape=shape)
