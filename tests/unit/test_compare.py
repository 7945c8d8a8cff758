"""All policies side by side: the slowest node and link count, and the busiest link is the simulator's."""

from dataclasses import replace

import pytest

from mcf.cluster import Cluster, NodeSpec, Topology
from mcf.engine.compare import compare
from mcf.errors import UserError
from mcf.mars import FORMS, REFERENCES, Job, worst_link_bytes
from mcf.policies import plan
from mcf.sim import load_profile, rates_of, simulate
from mcf.sim.profile import ProfileNode
from simulated import QWEN, asked, profile, tiny_shape

FITTED = [name for name in FORMS if name != "mars"]


def test_the_slowest_node_and_link_count() -> None:
    used = replace(
        profile(), nodes=(ProfileNode(), ProfileNode(numbers={"flops_s": 10.0, "link_bytes_s": 32.0})),
        links={(0, 1): {"link_latency_s": 2.0}},
    )  # fmt: skip
    found = rates_of(used, Cluster.uniform("switch", 2))
    assert (found.P, found.BW, found.tau, found.BW_mem) == (10.0, 32.0, 2.0, 1e15)


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("num_nodes", [2, 5])
def test_the_busiest_port_is_the_simulators(name: str, num_nodes: int) -> None:
    shape = tiny_shape(3)
    form = FORMS[name](Job(shape=shape, topology=Topology.parse("switch", num_nodes), S=203, B=50))
    result = simulate(plan(name, asked(shape, num_nodes, 203, 50)), profile(), shape=shape)
    assert worst_link_bytes(form) == pytest.approx(max(result.link_busy_s.values()) * 64)


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize("spec", ["ring", "mesh:2x4"])
def test_the_busiest_link_of_others_is_near(name: str, spec: str) -> None:
    """Makers count as alike, and a tree as one that goes to all nodes."""
    shape = tiny_shape(3)
    form = FORMS[name](Job(shape=shape, topology=Topology.parse(spec, 8), S=1024, B=256))
    result = simulate(plan(name, asked(shape, 8, 1024, 256, spec)), profile(), shape=shape)
    busiest = max(result.link_busy_s.values()) * 64
    assert worst_link_bytes(form) == pytest.approx(busiest, rel=0.55 if name in ("pd", "mars-paper") else 0.25)


def test_each_policy_has_its_best_chunk_and_its_budget() -> None:
    shape, rates = replace(QWEN, kv_bytes=2), rates_of(load_profile("gpu-10g"), Cluster.uniform("switch", 4))
    nodes = (*(NodeSpec(kv_budget_bytes=400_000_000),) * 3, NodeSpec(kv_budget_bytes=200_000_000))
    cluster = Cluster(nodes=nodes, topology=Topology.parse("switch", 4))
    found = compare(shape, cluster, rates, prompt_tokens=20_000)
    rows = {row.policy: row for row in found.rows}
    assert set(rows) == {*FORMS, *REFERENCES}
    assert found.fits
    assert rows["full"].missing_bytes == rows["full"].peak_kv_bytes - 200_000_000
    for name, row in rows.items():
        alone = {
            size: compare(shape, cluster, rates, prompt_tokens=20_000, chunk_tokens=size)
            for size in (256, 2048, 20_000)
        }
        for other in alone.values():
            same = next(r for r in other.rows if r.policy == name)
            assert not same.fits or row.ttft_s <= same.ttft_s * 1.0101
    for wrong in (0, "many"):
        with pytest.raises(UserError, match="expected"):
            compare(shape, cluster, rates, prompt_tokens=20_000, chunk_tokens=wrong)
