"""How large a worker may be: the process with its libraries, weights, pool, and buffers stated by formula."""

from typing import Any

from mcf.engine.llm import LLM
from mcf.engine.planner import Plan
from mcf.model import ModelShape

_STATE_BYTES = 4  # partial states are float32
_SHORT_TOKENS = 10
_LAYER_COPIES = 3  # of the widest activation: gate, up and their product


def buffer_bytes(shape: ModelShape, plan: Plan) -> list[int]:
    """Bytes of activations and partial states that each worker holds at once in its largest chunk, by formula.

    Per token: the hidden state and its residual, norm and output in float32; three widths of the MLP; Q, K, V; the
    states of its own attention and, twice, of each other worker's. And the float32 logits of one token.
    """
    sched = plan.schedule
    heads = shape.num_q_heads + 2 * shape.num_kv_heads
    state = shape.num_q_heads * (shape.head_dim + 2) * _STATE_BYTES
    per_token = 4 * shape.hidden_size * _STATE_BYTES + _LAYER_COPIES * shape.intermediate_size * shape.act_bytes
    per_token += 2 * heads * shape.head_dim * shape.act_bytes + state * (2 + 2 * (sched.meta.num_nodes - 1))
    most = sched.tokens.max(axis=0).tolist()
    return [int(tokens) * per_token + 2 * shape.vocab_size * _STATE_BYTES for tokens in most]


def base_bytes(llm: LLM) -> list[int]:
    """Bytes of each worker's process without weights: Python and its libraries, some of which load at first use.

    So a short request goes first; its pool and buffers are returned by then. Raises what `generate` raises.
    """
    llm.generate(list(range(_SHORT_TOKENS)), max_tokens=2, ignore_eos=True)
    found = llm.measure("memory")
    return [worker["rss_bytes"] - weights for worker, weights in zip(found, llm.weight_bytes, strict=True)]


def stated(llm: LLM, plan: Plan, base: list[int], peak: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Per worker: base + weights + pool + buffers, the measured peak, and their ratio."""
    report, rows = plan.report, []
    for rank, buffers in enumerate(buffer_bytes(llm.shape, plan)):
        parts = {
            "base_bytes": base[rank],
            "weight_bytes": llm.weight_bytes[rank],
            "pool_bytes": report.page_bytes[rank] + report.slot_bytes[rank],
            "buffer_bytes": buffers,
        }
        total = sum(parts.values())
        measured = peak[rank]["peak_rss_bytes"]
        rows.append({**parts, "stated_bytes": total, "peak_rss_bytes": measured, "ratio": round(measured / total, 4)})
    return rows
