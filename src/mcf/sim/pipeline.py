"""Chunked pipeline parallelism, as a reference: layers are cut over the nodes, chunks follow each other through them.

No KV moves: only the hidden states of a chunk go from a node to the next, so that on slow links this is the strongest
competitor. What it costs is the time in which the pipeline fills and drains, and that later chunks, with more history,
take longer than earlier ones. It is no schedule and no policy: nothing here executes it.
"""

from dataclasses import dataclass

from mcf.errors import UserError
from mcf.model import ModelShape
from mcf.sim.cost import head_seconds
from mcf.sim.profile import Profile

STEPS = 3  # of a layer, each with a step's overhead: dense work, attention, merge


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """`ttft_s` with the output head; `traffic_bytes` of hidden states; `peak_kv_bytes` of the fullest node."""

    ttft_s: float
    traffic_bytes: int
    peak_kv_bytes: int


def pipeline(
    shape: ModelShape, profile: Profile, *, num_nodes: int, prompt_tokens: int, chunk_tokens: int
) -> PipelineResult:
    """Time chunked pipeline parallelism on a chain of nodes; a node's next link serves one chunk after the other.

    `chunk_tokens` is the whole chunk, which every node computes for its layers. Raises UserError for more nodes than
    layers, and for numbers below 1.
    """
    if min(num_nodes, prompt_tokens, chunk_tokens) < 1:
        given = f"{num_nodes} nodes, {prompt_tokens} prompt tokens and chunks of {chunk_tokens}"
        raise UserError(f"got {given}: expected at least 1 each")
    if num_nodes > shape.num_layers:
        raise UserError(f"got {num_nodes} nodes for a pipeline of {shape.num_layers} layers: expected a layer each")
    stages = [shape.num_layers * (n + 1) // num_nodes - shape.num_layers * n // num_nodes for n in range(num_nodes)]
    busy, sent = [0.0] * num_nodes, [0.0] * num_nodes
    for history in range(0, prompt_tokens, chunk_tokens):
        tokens = min(chunk_tokens, prompt_tokens - history)
        layer_s = _layer_seconds(shape, profile, tokens, history)
        moving_s = tokens * shape.hidden_size * shape.act_bytes / profile.link_bytes_s
        here = 0.0
        for node, layers in enumerate(stages):
            busy[node] = max(here, busy[node]) + layers * layer_s
            sent[node] = max(busy[node], sent[node]) + moving_s
            here = sent[node] + profile.link_latency_s
    return PipelineResult(
        ttft_s=busy[-1] + head_seconds(shape, profile),
        traffic_bytes=(num_nodes - 1) * prompt_tokens * shape.hidden_size * shape.act_bytes,
        peak_kv_bytes=int(max(stages) * prompt_tokens * shape.kv_token_layer_bytes),
    )


def _layer_seconds(shape: ModelShape, profile: Profile, tokens: int, history: int) -> float:
    """One layer of one chunk on one node: dense work, and attention to all tokens before and with it."""
    weights, pairs = shape.num_layer_weights, tokens * history + tokens * (tokens + 1) // 2
    dense = max(2 * weights * tokens / profile.flops_s, weights * profile.weight_bytes / profile.memory_bytes_s)
    work = 4 * shape.head_dim * shape.num_q_heads * pairs / (profile.attention_flops_s or profile.flops_s)
    read = (history + tokens) * shape.kv_token_layer_bytes / profile.memory_bytes_s
    return dense + max(work, float(read)) + STEPS * profile.step_overhead_s
