"""Closed forms against `verify`'s report of the real schedules, and their times against the simulator's."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mcf.cluster import Topology
from mcf.mars import FORMS, REFERENCES, Job, Rates, predict
from mcf.model import ModelShape
from mcf.policies import NAMES, PlanRequest, least_budget, plan
from mcf.schedule import verify
from mcf.sim import Profile, bounds, load_profile, simulate
from plans import LEAST_NODES, pairs_of, request, requests, with_budgets
from simulated import QWEN, asked

WITH_FORMS = [name for name in NAMES if name in FORMS]
every_form = pytest.mark.parametrize("name", WITH_FORMS)


def job(asked: PlanRequest) -> Job:
    budgets = [budget for budget in asked.cluster.kv_budgets if budget is not None]
    return Job(
        shape=asked.shape,
        topology=asked.cluster.topology,
        S=asked.prompt_tokens,
        B=asked.chunk_tokens,
        stream_slots=asked.stream_slots,
        max_new_tokens=asked.max_new_tokens,
        alpha=asked.alpha,
        drain_chunks=asked.drain_chunks,
        S_node=min(budgets, default=None),
        rates=asked.rates,
    )


def rates(used: Profile) -> Rates:
    return Rates(
        P=used.flops_s,
        BW=used.link_bytes_s,
        tau=used.link_latency_s,
        BW_mem=used.memory_bytes_s,
        w=used.weight_bytes,
        overhead=used.step_overhead_s,
    )


# --- bytes and memory ---


@every_form
@settings(max_examples=50, deadline=None)
@given(drawn=requests())
def test_bytes_and_peaks_are_those_of_the_schedule(name: str, drawn: PlanRequest) -> None:
    """Where nodes relay, those that fetch get a bound of their peak, and `mars` everywhere."""
    assume(drawn.num_nodes >= LEAST_NODES.get(name, 1))
    drawn = replace(drawn, drain_chunks=0) if name == "mars-paper" else drawn  # an estimate, see below
    j, drawn = job(drawn), replace(drawn, buffer_bytes=0)
    form, report = FORMS[name](j), verify(plan(name, drawn))
    assert form.traffic == report.traffic
    if name == "mars" or (j.has_relays and name in ("gather", "one-shot", "mars-paper")):
        assert (form.peak_bytes >= np.array(report.peak_bytes)).all()
    else:
        assert tuple(form.peak_bytes.tolist()) == report.peak_bytes


@every_form
@pytest.mark.parametrize("topology", ["switch", "ring"])
def test_with_one_slot_too(name: str, topology: str) -> None:
    for num_nodes in (2, 3) if name in ("ring", "zigzag") or topology == "ring" else (2, 3, 5):
        if num_nodes > 2 and name in ("ring", "zigzag"):
            continue  # they refuse it
        drawn = request(num_nodes, 700, 130, topology=topology, stream_slots=1)
        form, report = FORMS[name](job(drawn)), verify(plan(name, drawn))
        assert (form.traffic, tuple(form.peak_bytes.tolist())) == (report.traffic, report.peak_bytes)


@pytest.mark.parametrize(("num_nodes", "tokens", "chunk"), [(4, 4096, 256), (8, 8192, 512)])
@pytest.mark.parametrize("alpha", [math.inf, None])
def test_mars_under_a_budget_is_estimated(num_nodes: int, tokens: int, chunk: int, alpha: float | None) -> None:
    """Bytes within 2 %, memory within 2 %: a typical node, not the policy's own layout."""
    drawn = request(num_nodes, tokens, chunk, num_layers=28, alpha=alpha)
    least = least_budget("mars-paper", drawn)
    for share in (1, 1.2, 1.5, 2, 4, 20):
        tight = with_budgets(drawn, int(least * share))
        form, report = FORMS["mars-paper"](job(tight)), verify(plan("mars-paper", tight))
        assert form.traffic_bytes == pytest.approx(sum(report.traffic.values()), rel=0.02)
        assert form.peak_bytes.max() == pytest.approx(max(report.peak_bytes), rel=0.02)
        assert form.peak_bytes.max() <= least * share
    assert FORMS["mars-paper"](job(with_budgets(drawn, least - 1))).peak_bytes.max() == least


@pytest.mark.parametrize("drain_chunks", [1, 4])
@pytest.mark.parametrize("share", [None, 2])
def test_mars_that_drains_early_is_estimated(drain_chunks: int, share: int | None) -> None:
    drawn = request(4, 4096, 256, num_layers=28, alpha=math.inf, drain_chunks=drain_chunks)
    tight = drawn if share is None else with_budgets(drawn, share * least_budget("mars-paper", drawn))
    form, report = FORMS["mars-paper"](job(tight)), verify(plan("mars-paper", tight))
    assert form.traffic_bytes == pytest.approx(sum(report.traffic.values()), rel=0.02)
    assert form.peak_bytes.max() == pytest.approx(max(report.peak_bytes), rel=0.02)


def test_a_pipeline_moves_activations_and_splits_layers() -> None:
    j = Job(shape=QWEN, topology=Topology.parse("switch", 4), S=8192, B=1024)
    form = REFERENCES["pipeline"](j)
    assert form.traffic_bytes == 8192 * 1536 * 2 * 3
    assert form.peak_bytes.tolist() == [8192 * QWEN.kv_token_bytes // 4] * 4


# --- times ---

PRESETS = ("cpu-1g", "cpu-50m", "gpu-10g", "gpu-100g", "kr260-physical", "paper16k-fitted")


@pytest.mark.parametrize(("name", "num_nodes"), pairs_of(WITH_FORMS, [2, 4, 16]))
def test_simulated_over_predicted_is_within_a_band(name: str, num_nodes: int) -> None:
    """Seen are 0.96 to 1.19 for 16K tokens, 256 per node and chunk, on all presets: 1.00 to 1.02 for most.

    But 0.78 for `mars` where latency is all: nodes that are not in step hide one layer's latency behind another's.
    """
    sched = plan(name, asked(QWEN, num_nodes, 16384, 256 * num_nodes))
    form = FORMS[name](Job(shape=QWEN, topology=Topology.parse("switch", num_nodes), S=16384, B=256 * num_nodes))
    for preset in PRESETS if num_nodes < 16 else PRESETS[-3:]:
        used = load_profile(preset)
        took, found = (
            simulate(sched, used, shape=QWEN, layers=6 if name == "mars" else 4).ttft_s,
            predict(form, rates(used)),
        )
        assert (0.75 if name == "mars" and preset == "paper16k-fitted" else 0.94) < took / found.ttft_s < 1.22
        least = bounds(sched, used, shape=QWEN)
        assert found.bound_s <= took
        assert (found.compute_s, found.weights_s, found.inbound_s) == pytest.approx(
            (least.compute_s, least.weights_s, least.inbound_s)
        )
        assert found.latency_s <= least.latency_s * (1 + 1e-9)


@pytest.mark.parametrize("name", ["gather", "pass-q", "mars"])
@pytest.mark.parametrize("topology", ["switch", "mesh:4x2"])
def test_halves_with_too_little_memory_must_talk_to_each_other(name: str, topology: str) -> None:
    """A node holds 1.7 times its own share, so that half of them cannot hold it all."""
    drawn = asked(QWEN, 8, 8192, 512, topology).with_budget(25_000_000)
    used = load_profile("gpu-10g")
    form, took = FORMS[name](job(drawn)), simulate(plan(name, drawn), used, shape=QWEN, layers=4).ttft_s
    found = predict(form, rates(used))
    assert 0 < found.bisection_s <= found.bound_s <= took
    assert predict(FORMS[name](replace(job(drawn), S_node=None)), rates(used)).bisection_s < found.bisection_s


@pytest.mark.parametrize("name", [*WITH_FORMS, *REFERENCES])
@given(
    num_nodes=st.integers(2, 12), tokens=st.integers(1, 3000), chunk=st.integers(40, 3000),
    P=st.sampled_from([1e9, 1e13]), BW=st.sampled_from([1e5, 1e9]), mem=st.sampled_from([1e8, 1e12]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_faster_is_never_slower_and_no_bound_is_beaten(
    name: str, num_nodes: int, tokens: int, chunk: int, P: float, BW: float, mem: float
) -> None:
    form = (FORMS | REFERENCES)[name](Job(shape=QWEN, topology=Topology.parse("switch", num_nodes), S=tokens, B=chunk))
    used = Rates(P=P, BW=BW, tau=1e-4, BW_mem=mem, overhead=1e-6)
    found = predict(form, used)
    assert found.bound_s <= found.ttft_s * (1 + 1e-9)
    for faster in (replace(used, P=2 * P), replace(used, BW=2 * BW), replace(used, BW_mem=2 * mem)):
        assert predict(form, faster).ttft_s <= found.ttft_s


def test_more_memory_never_makes_mars_slower() -> None:
    drawn = request(4, 4096, 256, num_layers=28, alpha=math.inf)
    least, shape = least_budget("mars-paper", drawn), drawn.shape
    assert isinstance(shape, ModelShape)
    used, times = Rates(P=1e9, BW=1e5), []
    for share in (1, 1.3, 1.7, 2.2, 3, 4, 6, 9):
        times.append(predict(FORMS["mars-paper"](job(with_budgets(drawn, int(least * share)))), used).ttft_s)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] / 2
