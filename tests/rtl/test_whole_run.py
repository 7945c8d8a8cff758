"""The executor on whole nodes obeys schedules as the reference does, with real payloads."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

import mcf.ref
from mcf.cluster import Cluster
from mcf.errors import RunError
from mcf.policies import PlanRequest, plan
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.demo import demo_schedule
from mcf.rtl.faults import LinkKind
from mcf.rtl.integers import Integers
from mcf.rtl.lower_whole import in_int4
from mcf.rtl.page_store import PageStore
from mcf.rtl.routes import Mesh
from mcf.rtl.run import RtlOutcome, run
from mcf.rtl.whole_compute import WholeCompute
from mcf.schedule import Schedule, verify
from mcf.schedule.steps import ATTEND, DECODE
from mcf.testing import random_qkv
from mcf.testing.drawing import random_schedule
from mcf.testing.executors import compare
from mcf.testing.policies import TINY
from mcf.testing.recipe import Recipe

pytestmark = [
    pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler())),
    pytest.mark.full,  # a whole node compiles for a minute
]

MESH, PAIR = Mesh(width=2, height=2), Mesh(width=2, height=1)
SHAPE = replace(TINY, head_dim=128, num_q_heads=2, num_kv_heads=1, kv_bytes=0.5, kv_scale_bytes=2)
TOLERANCE = 2e-3  # of the largest output
WHOLE = {"prompt_tokens": 512, "chunk_tokens": 512, "max_new_tokens": 2}
HALVES = WHOLE | {
    "chunk_tokens": 256
}  # two chunks: for pieces of whole blocks with 2 nodes, or with 4 in one span each


def schedules() -> dict[str, Schedule]:
    """The kinds of `test_rtl_run`, in sizes that whole nodes take and that end in seconds."""
    out = {}
    for policy, topology, num_nodes, sizes in (
        ("ring", "switch", 4, HALVES),
        ("gather", "ring", 4, WHOLE),
        ("gather", "switch", 2, HALVES),
        ("full", "mesh:2x2", 4, WHOLE),
        ("mars-paper", "switch", 2, HALVES),
        ("pass-q", "switch", 4, WHOLE),
        ("zigzag", "switch", 2, HALVES),
    ):
        request = PlanRequest(shape=SHAPE, cluster=Cluster.uniform(topology, num_nodes), **sizes)
        out[f"{policy} on a {topology}"] = plan(policy, request)
    sizes = {"num_nodes": 2, "page_tokens": 64, "head_dim": 128, "num_kv_heads": 1, **HALVES}
    for seed in (2, 5, 7):
        out[f"random {seed}"] = in_int4(random_schedule(Recipe(**sizes, seed=seed, multicast=True)))
    return out


def obey(sched: Schedule, mesh: Mesh, *, decode_tokens: int, **how: object) -> RtlOutcome:
    """Run a schedule, and compare what came with the reference on the numbers that the integers stand for."""
    verify(sched)
    tensors = random_qkv(sched.meta, decode_tokens=decode_tokens)
    got = run(sched, *tensors, decode_tokens=decode_tokens, mesh=mesh, whole=True, **how)
    law = mcf.ref.run(sched, *Integers(sched.meta, tensors).stand_for(), decode_tokens=decode_tokens)
    compare(got, law, tolerance=TOLERANCE * float(np.abs(law.out).max()))
    assert got.peak_bytes == law.peak_bytes
    assert got.certificate.is_exact == law.certificate.is_exact
    assert got.exact_states == num_states(sched, decode_tokens)
    assert got.exact_merges == got.merged == sched.meta.num_nodes * decode_tokens * sched.meta.num_layers * 2
    return got


def num_states(sched: Schedule, decode_tokens: int) -> int:
    """One state for each query token, query head and layer of each attend."""
    meta, total = sched.meta, 0
    for row in (sched.steps["kind"] == ATTEND).nonzero()[0].tolist():
        step = sched.step(row)
        is_decode = step.stage == DECODE
        tokens = decode_tokens if is_decode else sum(hi - lo for lo, hi in sched.spans(step.chunk, step.q))
        total += tokens * (step.h_hi - step.h_lo) * meta.group_heads * meta.num_layers
    return total


@pytest.mark.parametrize("name", schedules())
def test_conformance(name: str) -> None:
    sched = schedules()[name]
    mesh = MESH if sched.meta.num_nodes == MESH.num_nodes else PAIR
    got = obey(sched, mesh, decode_tokens=2, links=LinkKind.PLAIN)
    assert got.certificate.is_exact
    assert min(got.memory_beats) > 1000


def test_the_demo_runs_over_noisy_links_with_two_heads_of_each() -> None:
    sched = demo_schedule(PAIR, is_whole=True)
    sched = replace(sched, meta=replace(sched.meta, num_layers=1))
    got = obey(sched, PAIR, decode_tokens=1, links=LinkKind.CREDIT, noise=0.01)
    assert sum(use.refused for use in got.links.values()) > 0


def small() -> Schedule:
    sizes = {"prompt_tokens": 256, "chunk_tokens": 256, "max_new_tokens": 1}
    shape = replace(SHAPE, num_layers=1)
    return plan("gather", PlanRequest(shape=shape, cluster=Cluster.uniform("mesh:2x1", 2), **sizes))


def test_a_bit_that_is_wrong_in_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What arrives is what is attended: the golden model does not look into the node's memory."""
    put = PageStore.put

    def wrong(store: PageStore, layer: int, head: int, half: int, block: int, data: bytes) -> None:
        put(store, layer, head, half, block, bytes([data[0] ^ 1]) + data[1:])

    monkeypatch.setattr(PageStore, "put", wrong)
    sched = small()
    with pytest.raises(RunError, match=r"node \d made another state for row \d+ than the golden model"):
        run(sched, *random_qkv(sched.meta, decode_tokens=0), decode_tokens=0, mesh=PAIR, whole=True)


def test_what_is_forgotten_is_not_attended(monkeypatch: pytest.MonkeyPatch) -> None:
    sched, attend = small(), WholeCompute.attend

    def forget(compute: WholeCompute, index: int, tick: int) -> None:
        held = set(compute.held)
        compute.forget([cell for cell, _ in held if cell[1] != compute.node], [0])
        compute.held |= held
        attend(compute, index, tick)

    monkeypatch.setattr(WholeCompute, "attend", forget)
    with pytest.raises(RunError, match="made another state"):
        run(sched, *random_qkv(sched.meta, decode_tokens=0), decode_tokens=0, mesh=PAIR, whole=True)
