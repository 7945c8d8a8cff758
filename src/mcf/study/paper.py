"""What the paper prints, and the one setting in which all of its tables and figures are simulated.

Published values stand here and nowhere else; ours are never typed in: they come from schedules that `verify` passed.
"""

from dataclasses import replace
from math import inf

from mcf.cluster import Cluster
from mcf.model import INT4_BYTES, ModelShape, named_shape
from mcf.sim import Profile, load_profile
from mcf.study.lab import Case

NODES = (2, 4, 8, 16)
PROMPT_TOKENS = 16 * 1024
NODE_TOKENS = 256  # per node and chunk: with INT4 KV the only setting that gives the ring volumes of Table 1

# Table 1: seconds, and what the column calls GiB (the ring's volumes say that it is 1e9 bytes)
TTFT_S = {
    "mars-paper": {2: 1.68, 4: 1.16, 8: 0.97, 16: 0.62},
    "ring": {2: 3.96, 4: 2.46, 8: 2.29, 16: 1.91},
    "zigzag": {2: 3.81, 4: 2.35, 8: 2.18, 16: 1.81},
}
VOLUME_GB = {
    "mars-paper": {2: 2.13, 4: 3.02, 8: 3.71, 16: 5.12},
    "ring": {2: 1.94, 4: 2.99, 8: 3.70, 16: 4.40},
    "zigzag": {2: 1.94, 4: 2.99, 8: 3.69, 16: 4.40},
}
NAMES = {"mars-paper": "MARS", "ring": "Ring", "zigzag": "Zigzag", "pd": "PD"}

# What section 6 says of a node: 127 DSP slices at 200 MHz, two operations each; 1,248 slices on the device; four INT4
# products fit a slice; DDR at 19.2e9 bytes per second
DSP_FLOPS_S = 127 * 200e6 * 2
PACKED = 4
DEVICE_FLOPS_S = 1248 * 200e6 * 2 * PACKED

FITTED_PROFILE = "paper16k-fitted"
PHYSICAL_PROFILE = "kr260-physical"
_MESH = {1: "switch", 2: "mesh:2x1", 4: "mesh:2x2", 8: "mesh:4x2", 16: "mesh:4x4"}


def shape() -> ModelShape:
    """The paper's model: Qwen2.5-1.5B with INT4 weights and KV."""
    return replace(named_shape("qwen2.5-1.5b", dtype="bfloat16"), kv_bytes=INT4_BYTES)


def case(
    policy: str,
    nodes: int,
    *,
    profile: str | Profile = FITTED_PROFILE,
    prompt_tokens: int = PROMPT_TOKENS,
    node_tokens: int = NODE_TOKENS,
    memory: float | None = None,
) -> Case:
    """One simulation in the paper's setting: a mesh, MARS without the reuse bound, memory for all unless said.

    `memory` is the KV budget of a node as a multiple of its own share of the prompt's KV.
    """
    model = shape()
    budget = None if memory is None else int(memory * -(-prompt_tokens // nodes) * model.kv_token_bytes)
    return Case(
        policy=policy,
        shape=model,
        profile=load_profile(profile) if isinstance(profile, str) else profile,
        cluster=Cluster.uniform(_MESH[nodes], nodes, kv_budget_bytes=budget),
        prompt_tokens=prompt_tokens,
        chunk_tokens=min(node_tokens * nodes, prompt_tokens),
        alpha=inf,
    )


def flops(prompt_tokens: int = PROMPT_TOKENS) -> float:
    """Operations of a prefill: two per weight and token, and causal attention."""
    model = shape()
    linear = 2.0 * model.num_layers * model.num_layer_weights * prompt_tokens
    pairs = prompt_tokens * (prompt_tokens + 1) / 2
    return linear + 4.0 * model.num_layers * model.num_q_heads * model.head_dim * pairs
