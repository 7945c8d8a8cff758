"""What no run can beat: arithmetic over the measured peak for prefill, bytes over the measured bandwidth for decode.

Both rates are measured on all workers at once, just before: they are those of this machine at this concurrency.
"""

from collections.abc import Sequence

from mcf.model import ModelShape


def prefill_flops(shape: ModelShape, num_tokens: int) -> float:
    """FLOPs of a prompt: per layer 2 per weight and token, 4 d H_q per visible (query, key) pair; one head."""
    dense = 2.0 * shape.num_layers * shape.num_layer_weights * num_tokens
    pairs = num_tokens * (num_tokens + 1) / 2
    attention = 4.0 * shape.num_layers * shape.num_q_heads * shape.head_dim * pairs
    return dense + attention + 2.0 * shape.vocab_size * shape.hidden_size


def decode_bytes(shape: ModelShape, num_tokens: int, num_workers: int) -> float:
    """Bytes that each worker must read for one token: all weights, and its share of the KV of `num_tokens`."""
    return shape.num_weights * shape.act_bytes + shape.kv_token_bytes * num_tokens / num_workers


def prefill_bound_s(shape: ModelShape, num_tokens: int, flops_s: Sequence[float]) -> float:
    """Seconds of a prompt's arithmetic, spread over workers of these rates."""
    return prefill_flops(shape, num_tokens) / sum(flops_s)


def decode_bound_s(shape: ModelShape, num_tokens: int, read_bytes_s: Sequence[float]) -> float:
    """Seconds of one token's bytes on the slowest of workers of these rates."""
    return decode_bytes(shape, num_tokens, len(read_bytes_s)) / min(read_bytes_s)
