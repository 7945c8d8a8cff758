"""What is right: dense causal attention in one piece, and random tensors to try it on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.schedule import ScheduleMeta

Array = NDArray[Any]


def dense_attention(q: Array, k: Array, v: Array) -> Array:
    """Causal attention of every position to itself and all before it: q [L, S, Hq, d], k and v [L, S, Hkv, d]; float64.

    Written without the partial state on purpose: it shares nothing with the executors that it judges.
    """
    num_positions, group = q.shape[1], q.shape[2] // k.shape[2]
    keys, values = (np.repeat(np.asarray(x, dtype=np.float64), group, axis=2) for x in (k, v))
    scores = np.einsum("lqhd,lkhd->lhqk", np.asarray(q, dtype=np.float64), keys) * q.shape[3] ** -0.5
    scores[:, :, ~np.tri(num_positions, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: Array = np.einsum("lhqk,lkhd->lqhd", weights / weights.sum(-1, keepdims=True), values)
    return out


def random_qkv(meta: ScheduleMeta, *, decode_tokens: int = 0, seed: int = 0) -> tuple[Array, Array, Array]:
    """Draw q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d]: normal deviates, float64."""
    rng = np.random.default_rng(seed)
    head = (meta.num_layers, meta.prompt_tokens + decode_tokens)
    heads = (meta.num_q_heads, meta.num_kv_heads, meta.num_kv_heads)
    q, k, v = (rng.normal(size=(*head, num_heads, meta.head_dim)) for num_heads in heads)
    return q, k, v
