"""The executor on simulated hardware obeys schedules as the reference does."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

import mcf.ref
from mcf.cluster import Cluster
from mcf.errors import LawError, RunError, ScheduleError
from mcf.policies import PlanRequest, plan
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.demo import demo_schedule
from mcf.rtl.directory import Directory
from mcf.rtl.faults import FaultKind, LinkFault, LinkKind
from mcf.rtl.kv_ops import KvCode, KvOp
from mcf.rtl.lower import lower
from mcf.rtl.number import as_kept
from mcf.rtl.routes import Mesh
from mcf.rtl.run import run
from mcf.schedule import Schedule
from mcf.schedule.kv import ABSENT, DRAINING
from mcf.testing import check_executor, random_qkv
from mcf.testing.drawing import random_schedule
from mcf.testing.executors import compare
from mcf.testing.policies import TINY
from mcf.testing.recipe import Recipe

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

MESH = Mesh(width=2, height=2)
CIRCLE = "random 7"  # a multicast of it must go to each receiver alone
QUICK = ("gather on a ring", CIRCLE)
# float32 on the wire in prefill; states of 16 bits in decode: 5e-4 of the largest output for 16 shards
TOLERANCE = 2e-3
BF16_TOLERANCE = 3e-2  # bfloat16 on the wire


def aligned_schedules() -> dict[str, Schedule]:
    """The conformance schedules' kinds, with pieces of whole blocks of 64 tokens."""
    out = {}
    for policy, topology in (
        ("ring", "switch"),
        ("gather", "ring"),
        ("gather", "switch"),
        ("full", "mesh:2x2"),
        ("mars-paper", "switch"),
    ):
        request = PlanRequest(
            shape=TINY, cluster=Cluster.uniform(topology, 4), prompt_tokens=1024, chunk_tokens=512, max_new_tokens=3
        )
        out[f"{policy} on a {topology}"] = plan(policy, request)
    sizes = {"num_nodes": 4, "prompt_tokens": 1024, "chunk_tokens": 512, "page_tokens": 64, "max_new_tokens": 3}
    for seed in (2, 5, 7):
        out[f"random {seed}"] = random_schedule(Recipe(**sizes, seed=seed, multicast=True))
    return out


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in aligned_schedules()]
)
def test_conformance(name):
    sched = aligned_schedules()[name]
    tolerance = BF16_TOLERANCE if sched.meta.kv_bytes == 2 else TOLERANCE
    assert check_executor(partial(run, mesh=MESH), {name: sched}, tolerance=tolerance) == 1


def test_int4_keys_and_values_are_rounded_once_wherever_they_go():
    """Of what INT4 holds exactly nothing is lost; the bytes moved are those of the schedule, scales too."""
    shape = replace(TINY, kv_bytes=0.5, kv_scale_bytes=2)
    sizes = {"prompt_tokens": 512, "chunk_tokens": 512, "max_new_tokens": 1}
    sched = plan("gather", PlanRequest(shape=shape, cluster=Cluster.uniform("mesh:2x2", 4), **sizes))
    q, *kv = random_qkv(sched.meta, decode_tokens=1)
    k, v = (as_kept(x, sched.meta) for x in kv)
    law = mcf.ref.run(sched, q, k, v, decode_tokens=1)
    assert float(np.abs(mcf.ref.run(sched, q, *kv, decode_tokens=1).out - law.out).max()) > 10 * TOLERANCE
    compare(run(sched, q, *kv, decode_tokens=1, mesh=MESH, links=LinkKind.PLAIN), law, tolerance=TOLERANCE)


def test_receivers_that_wait_for_each_other_are_found_before_the_run(monkeypatch):
    """What lowering takes apart is needed: together the copies of that send never leave."""
    sched = aligned_schedules()[CIRCLE]
    together = replace(lower(sched, MESH), alone=frozenset())
    monkeypatch.setattr("mcf.rtl.run.lower", lambda *_: together)
    with pytest.raises(LawError, match="V6.*the mesh stands still: .* waits for"):
        run(sched, *random_qkv(sched.meta, decode_tokens=1), decode_tokens=1, mesh=MESH, links=LinkKind.PLAIN)


def answers_of(monkeypatch):
    """What the directories in hardware answer from now on: node, operation, code, block, state; of layer 0."""
    out, note = [], Directory._note

    def spy(directory, asked, code, state):
        if asked.layer == 0:
            out.append((directory.node, asked.op, code, asked.cell, state))
        note(directory, asked, code, state)

    monkeypatch.setattr(Directory, "_note", spy)
    return out


@pytest.mark.parametrize("stall", [pytest.param(0.0, marks=pytest.mark.full), 0.3])
def test_the_demo_multicasts_drains_and_merges(stall, monkeypatch):
    """Node 1 drains and frees a replica that came by multicast while node 3 still reads it over the network."""
    sched = demo_schedule(MESH)
    answers = answers_of(monkeypatch)
    tensors = random_qkv(sched.meta, decode_tokens=4)
    got = run(sched, *tensors, decode_tokens=4, mesh=MESH, links=LinkKind.PLAIN, latency=3, stall=stall)
    law = mcf.ref.run(sched, *tensors, decode_tokens=4)
    assert float(np.abs(got.out - law.out).max()) < BF16_TOLERANCE
    assert got.peak_bytes == law.peak_bytes
    assert got.certificate.is_exact
    assert got.merged == 4 * 4 * sched.meta.num_layers * sched.meta.num_q_heads
    assert got.trace.bytes_per_link_and_purpose() == law.trace.bytes_per_link_and_purpose()
    assert min(use.moved for use in got.links.values()) > 100
    held = [(node, cell) for node, op, code, cell, _ in answers if (op, code) == (KvOp.FREE, KvCode.HELD)]
    assert (1, (0, 0, 0)) in held
    for node, cell in held:
        life = [(op, code, state) for n, op, code, c, state in answers if (n, c) == (node, cell)]
        at = life.index((KvOp.FREE, KvCode.HELD, DRAINING))
        assert (KvOp.DRAIN, KvCode.OK, DRAINING) in life[:at]
        readers = sum({KvOp.READ: 1, KvOp.DONE: -1}.get(op, 0) for op, _, _ in life[:at])
        assert readers > 0
        assert life[at + readers] == (KvOp.DONE, KvCode.FREED, ABSENT)
    if stall:
        assert max(use.stalled for use in got.links.values()) > 100


def test_tensors_that_do_not_fit_are_refused():
    sched = demo_schedule(MESH)
    with pytest.raises(ScheduleError, match="got q of shape .* the schedule expects"):
        run(sched, *random_qkv(sched.meta, decode_tokens=1), decode_tokens=2, mesh=MESH)


@pytest.mark.parametrize(
    "fault",
    [
        LinkFault(0, 1, FaultKind.FLIP, 0, 40),  # a header
        LinkFault(0, 1, FaultKind.DROP, 30),  # a payload beat: the packet is too short
        pytest.param(LinkFault(0, 1, FaultKind.DOUBLE, 30), marks=pytest.mark.full),  # too long
    ],
)
def test_without_the_link_layer_a_damaged_packet_is_dropped_counted_and_named(fault):
    sched = demo_schedule(MESH)
    tensors = random_qkv(sched.meta, decode_tokens=1)
    with pytest.raises(RunError, match=r"node \d dropped packets \(.*(header|length)"):
        run(sched, *tensors, decode_tokens=1, mesh=MESH, links=LinkKind.PLAIN, faults=[fault])
