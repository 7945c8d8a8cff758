"""Profiles and requests for tests of the simulator."""

from dataclasses import replace
from typing import Any

from mcf.cluster import Cluster
from mcf.model import ModelShape
from mcf.policies import PlanRequest
from mcf.schedule import Schedule
from mcf.sim import Profile

QWEN = ModelShape(
    name="Qwen2.5-1.5B",
    num_layers=28,
    num_q_heads=12,
    num_kv_heads=2,
    head_dim=128,
    hidden_size=1536,
    intermediate_size=8960,
    vocab_size=151936,
    max_positions=1 << 20,
    kv_bytes=1,
    act_bytes=2,
)


def profile(**changes: Any) -> Profile:
    """Round numbers: 1000 operations and 64 bytes over a link per second, half a second of latency."""
    numbers = dict(flops_s=1000.0, memory_bytes_s=1e15, memory_bytes=1e9, link_bytes_s=64.0, link_latency_s=0.5)
    rest = dict(step_overhead_s=0.0, weight_bytes=1.0)
    return Profile(**(dict(name="test", physical=False) | numbers | rest | changes))


def tiny_shape(num_layers: int = 1) -> ModelShape:
    """192 weights per layer and 64 in the output head."""
    return ModelShape(
        name="tiny",
        num_layers=num_layers,
        num_q_heads=2,
        num_kv_heads=1,
        head_dim=4,
        hidden_size=4,
        intermediate_size=8,
        vocab_size=16,
        max_positions=1 << 20,
    )


def asked(shape: ModelShape, num_nodes: int, prompt: int, chunk: int, topology: str = "switch") -> PlanRequest:
    cluster = Cluster.uniform(topology, num_nodes)
    return PlanRequest(shape=shape, cluster=cluster, prompt_tokens=prompt, chunk_tokens=chunk)


def shape_of(sched: Schedule) -> ModelShape:
    """A shape that fits a schedule's sizes."""
    meta = sched.meta
    names = ("num_layers", "num_q_heads", "num_kv_heads", "head_dim", "kv_bytes", "act_bytes")
    return replace(tiny_shape(), **{name: getattr(meta, name) for name in names})
