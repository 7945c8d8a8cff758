"""Small plan requests for tests of policies and of what they write."""

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

from hypothesis import strategies as st

from mcf.cluster import Cluster, NodeSpec, Topology
from mcf.errors import LawError
from mcf.model import ModelShape
from mcf.policies import PlanRequest
from mcf.schedule import Schedule, verify

LEAST_NODES = {"pd": 2}  # a policy that is not named here runs on one node


def can_run(sched: Schedule) -> bool:
    """Relays may dead-lock as plain sends, and `verify` says so (V6); any other law must hold."""
    try:
        verify(sched)
    except LawError as error:
        return error.law != "V6"
    return True


def pairs_of(names: Iterable[str], num_nodes: Iterable[int]) -> list[tuple[str, int]]:
    """(policy, node count), but what a policy refuses."""
    return [(name, n) for name, n in product(names, num_nodes) if n >= LEAST_NODES.get(name, 1)]


def small_shape(num_layers: int = 2) -> ModelShape:
    return ModelShape(
        name="small",
        num_layers=num_layers,
        num_q_heads=4,
        num_kv_heads=2,
        head_dim=8,
        hidden_size=32,
        intermediate_size=64,
        vocab_size=64,
        max_positions=1 << 20,
    )


def request(
    num_nodes: int = 4,
    prompt_tokens: int = 1024,
    chunk_tokens: int = 256,
    *,
    topology: str = "switch",
    num_layers: int = 2,
    **more: Any,
) -> PlanRequest:
    return PlanRequest(
        shape=small_shape(num_layers),
        cluster=Cluster.uniform(topology, num_nodes),
        prompt_tokens=prompt_tokens,
        chunk_tokens=chunk_tokens,
        **more,
    )


def with_budgets(asked: PlanRequest, *budgets: int | None) -> PlanRequest:
    """The same request with one budget for all nodes, or one for each."""
    each = budgets * asked.num_nodes if len(budgets) == 1 else budgets
    nodes = tuple(NodeSpec(kv_budget_bytes=budget) for budget in each)
    return replace(asked, cluster=replace(asked.cluster, nodes=nodes))


@st.composite
def requests(draw: st.DrawFn, *, max_tokens: int = 600) -> PlanRequest:
    """Requests without budgets: all shapes of prompt, several topologies, with two or three stream slots."""
    num_nodes = draw(st.integers(1, 6))
    prompt_tokens = draw(st.integers(1, 20) | st.integers(1, max_tokens))
    return PlanRequest(
        shape=small_shape(draw(st.sampled_from([1, 2, 5]))),
        cluster=Cluster(
            nodes=(NodeSpec(),) * num_nodes,
            topology=Topology(
                name=draw(st.sampled_from(["switch", "ring", "mesh", "tree", "ring:one-way"])), num_nodes=num_nodes
            ),
        ),
        prompt_tokens=prompt_tokens,
        chunk_tokens=draw(st.integers(max(1, prompt_tokens // 9), prompt_tokens + 3)),
        max_new_tokens=draw(st.sampled_from([0, 1, 70, 400])),
        stream_slots=draw(st.sampled_from([2, 2, 3])),
        buffer_bytes=draw(st.sampled_from([0, 0, 5 * 64 * 128])),
        drain_chunks=draw(st.sampled_from([0, 0, 1, 3])),
        alpha=draw(st.sampled_from([None, 0, 0.7, 2, math.inf])),
    )
