"""Lowering for whole nodes: what travels how, which states never see a processor, and what is refused."""

from dataclasses import replace

import pytest

from mcf.cluster import Cluster
from mcf.errors import ScheduleError
from mcf.policies import PlanRequest, plan
from mcf.rtl.demo import demo_schedule
from mcf.rtl.entry import Port
from mcf.rtl.lower_whole import RECORD_BYTES, in_int4, lower_whole
from mcf.rtl.pages import PAGE_BYTES
from mcf.rtl.routes import Mesh
from mcf.schedule import Schedule, verify
from mcf.schedule.steps import ATTEND, DECODE, KV, SEND, STATE
from mcf.testing.policies import TINY

MESH = Mesh(width=2, height=2)
SHAPE = replace(TINY, head_dim=128, kv_bytes=0.5, kv_scale_bytes=2)
GIB = 1 << 30


def planned(policy: str, *, topology: str = "mesh:2x2", **changes: object) -> Schedule:
    sizes = {"prompt_tokens": 512, "chunk_tokens": 512, "max_new_tokens": 1, **changes}
    return plan(policy, PlanRequest(shape=SHAPE, cluster=Cluster.uniform(topology, 4), **sizes))


def changed(**values: int) -> Schedule:
    sched = planned("gather")
    return replace(sched, meta=replace(sched.meta, **values))


def test_pages_and_records_are_the_payloads() -> None:
    sched = planned("pass-q", topology="switch")
    low = lower_whole(sched, MESH, memory_bytes=4 * GIB)
    found = {(int(sched.steps["payload"][row]), one.num_bytes) for row, held in low.messages.items() for one in held}
    assert {(KV, PAGE_BYTES), (STATE, 64 * 2 * RECORD_BYTES)} & found
    assert all(size == PAGE_BYTES for payload, size in found if payload == KV)
    assert all(size % (2 * RECORD_BYTES) == 0 for payload, size in found if payload == STATE)


def test_a_state_of_decode_goes_along_one_tree_to_all_units_its_own_too() -> None:
    sched = planned("gather")
    low = lower_whole(sched, MESH, memory_bytes=4 * GIB)
    steps = sched.steps
    attends = set(((steps["kind"] == ATTEND) & (steps["stage"] == DECODE)).nonzero()[0].tolist())
    assert low.direct == attends
    assert len(low.joined) == 4
    for send, route in low.joined.items():
        assert (steps["kind"][send], steps["payload"][send]) == (SEND, STATE)
        entries = low.embedding.tables.routes[route - 1]
        assert sorted(node for node, entry in entries.items() if Port.LOCAL in entry.outs) == [0, 1, 2, 3]
        assert low.route(send, sched.receivers(send)) == route


def test_states_that_come_back_have_a_route_to_their_own_node() -> None:
    low = lower_whole(demo_schedule(MESH, is_whole=True), MESH, memory_bytes=4 * GIB)
    for node, route in enumerate(low.own):
        entry = low.embedding.tables.routes[route - 1][node]
        assert (entry.in_port, entry.outs) == (Port.LOCAL, {Port.LOCAL})


def test_any_schedule_can_be_given_int4() -> None:
    sched = in_int4(demo_schedule(MESH))
    verify(sched)
    assert (sched.meta.kv_bytes, sched.meta.kv_scale_bytes) == (0.5, 2)


@pytest.mark.parametrize(
    ("sched", "memory_bytes", "text"),
    [
        (in_int4(demo_schedule(MESH)), GIB, "got heads of 32: a whole node holds pages of heads of 128; plan"),
        (planned("gather"), 1 << 21, r"got 513 tokens in 2 layers: 0.00 GiB of pages and .* at most 0.00 GiB"),
        (
            changed(prompt_tokens=66048, chunk_tokens=66048),
            4 * GIB,
            "got 66049 tokens: a query head adds up at most 65535",
        ),
        (
            changed(kv_bytes=2, kv_scale_bytes=0),
            GIB,
            "got KV of 2 bytes per element with scales of 0 bytes: whole nodes keep and send INT4",
        ),
        (changed(num_q_heads=34), GIB, "got 17 query heads of one KV head: a compute half has 16 slots"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_limit(sched: Schedule, memory_bytes: int, text: str) -> None:
    with pytest.raises(ScheduleError, match=text):
        lower_whole(sched, MESH, memory_bytes=memory_bytes)
