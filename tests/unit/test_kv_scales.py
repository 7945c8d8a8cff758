"""Scales of quantised KV: bytes of pages, traffic, budgets and time, in every room that counts them."""

from dataclasses import replace

import pytest

from mcf.cluster import Cluster
from mcf.errors import InfeasibleError, ModelError, ScheduleError
from mcf.mars import FORMS, Job, M_token
from mcf.policies import PlanRequest, least_budget, plan
from mcf.schedule import Schedule, dump, from_bytes, parse, to_bytes, verify
from mcf.schedule.packets import headers_of
from mcf.schedule.steps import KV, SEND
from mcf.sim import bounds, simulate
from simulated import QWEN, profile

INT4 = replace(QWEN, num_layers=4, kv_bytes=0.5)
SCALED = replace(INT4, kv_scale_bytes=2)  # an fp16 scale for 128 elements: 66 bytes where 64 were


def request(shape: object = SCALED, **more: object) -> PlanRequest:
    return PlanRequest(shape=shape, cluster=Cluster.uniform("switch", 4), prompt_tokens=2048, chunk_tokens=512, **more)  # type: ignore[arg-type]


def test_a_scale_per_head_adds_a_thirty_second_to_int4() -> None:
    assert replace(SCALED, num_layers=28).kv_token_bytes == 7168 * 33 / 32 == 7392
    assert M_token(SCALED) == M_token(INT4, scale_bytes=4 * 2 * 2 * 2)
    assert replace(INT4, kv_bytes=1, kv_scale_bytes=2).kv_token_layer_bytes == 512 + 8
    with pytest.raises(ModelError, match="kv_scale_bytes: expected a whole number of at least 1"):
        replace(INT4, kv_scale_bytes=-2)
    with pytest.raises(ScheduleError, match="kv_scale_bytes is -1: expected at least 0"):
        replace(plan("ring", request()).meta, kv_scale_bytes=-1)


@pytest.mark.parametrize("name", ["ring", "full", "gather", "pass-q", "ulysses", "mars-paper", "mars"])
def test_every_room_counts_them(name: str) -> None:
    """KV on links, pages and slots grow by 33/32; queries and states do not."""
    bare, scaled = (plan(name, request(shape)) for shape in (INT4, SCALED))
    before, after = verify(bare), verify(scaled)
    for purpose in ("new_kv", "fetched_kv"):
        assert after.traffic[purpose] * 32 == before.traffic[purpose] * 33
    assert (after.traffic["query"], after.traffic["state"]) == (before.traffic["query"], before.traffic["state"])
    assert [peak * 32 for peak in after.peak_bytes] == [peak * 33 for peak in before.peak_bytes]
    form = FORMS[name](Job(shape=SCALED, topology=Cluster.uniform("switch", 4).topology, S=2048, B=512))
    assert form.traffic == after.traffic
    ran = simulate(scaled, profile(), shape=SCALED)
    assert ran.traffic == after.traffic
    assert ran.ttft_s >= bounds(scaled, profile(), shape=SCALED).bound_s
    assert bounds(scaled, profile(), shape=SCALED).kv_bytes == 512 * 4 * 264


def test_a_budget_that_holds_without_scales_is_too_small_with_them() -> None:
    tight = request(SCALED).with_budget(least_budget("gather", request(INT4)))
    with pytest.raises(InfeasibleError, match="policy gather needs .* more"):
        plan("gather", tight)


def test_both_forms_of_a_schedule_carry_them_and_old_ones_stay_as_they_were() -> None:
    scaled, bare = plan("ring", request()), plan("ring", request(INT4))
    for sched in (scaled, bare):
        assert from_bytes(to_bytes(sched)).meta == parse(dump(sched)).meta == sched.meta
    assert "meta kv_scale_bytes=2" in dump(scaled)
    assert "kv_scale_bytes" not in dump(bare)
    assert b"kv_scale_bytes" not in to_bytes(bare)
    assert kv_packet_bytes(scaled) * 32 == kv_packet_bytes(bare) * 33


def kv_packet_bytes(sched: Schedule) -> int:
    """Bytes of the packets of the first row that sends KV, all layers."""
    s = sched.steps
    row = int(((s["kind"] == SEND) & (s["payload"] == KV)).argmax())
    beats = int(headers_of(sched, row)["len"].sum())
    assert beats * 16 == int(sched.row_bytes[row]) * sched.meta.num_layers
    return beats * 16
