"""How fast this node is: rates of dense work, of attention and of memory, by the kernels that a run uses.

Every work is done once to warm up, then repeated for a while; the median counts. All workers measure at once and begin
each item together, because a run loads the machine in the same way.

Shapes: T tokens of a chunk's piece, H hidden size, I size of the MLP's inner layer.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from mcf.attn.kernels import attend_spans
from mcf.dist.hf import DTYPES

SIZES = ("tokens", "past_tokens", "hidden", "inner", "q_heads", "kv_heads", "head_dim", "stream_bytes", "num_threads")
_LEAST, _WIDTH, _STEP_KEYS = 3, 2048, 64
Work = Callable[[], object]
Meet = Callable[[], object]


def measure(sizes: Mapping[str, Any], meet: Meet, clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return operations per second, bytes per second and seconds by name; `sizes` has `SIZES` and `seconds` per item.

    `meet` returns when all workers have come to it. Names are those of a profile, with the dtype before them.
    """
    torch.set_num_threads(sizes["num_threads"])
    found: dict[str, float] = {}
    with torch.inference_mode():
        for name, dtype in DTYPES.items():
            for what, prepare in (("flops_s", _dense), ("attention_flops_s", _attention), ("memory_bytes_s", _stream)):
                work, amount = prepare(sizes, dtype)
                meet()
                found[f"{name}_{what}"] = amount / seconds_of(work, sizes["seconds"], clock)
        work, amount = _copy(sizes)
        meet()
        found["stream_bytes_s"] = amount / seconds_of(work, sizes["seconds"], clock)
        meet()
        found["step_overhead_s"] = seconds_of(_step(sizes), sizes["seconds"] / 2, clock)
    return found


def seconds_of(work: Work, seconds: float, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of one work, repeated for `seconds` after a first that does not count: workers are at it together.

    The median of at least three, or of one where a single one takes longer than `seconds`.
    """
    start = clock()
    work()
    least = 1 if clock() - start > seconds else _LEAST
    times: list[float] = []
    begin = clock()
    while len(times) < least or clock() - begin < seconds:
        start = clock()
        work()
        times.append(clock() - start)
    return median(times)


def _dense(sizes: Mapping[str, Any], dtype: torch.dtype) -> tuple[Work, float]:
    """One layer without its attention: seven products on T rows, with what stands between them."""
    tokens, hidden, inner = sizes["tokens"], sizes["hidden"], sizes["inner"]
    q, kv = (sizes[heads] * sizes["head_dim"] for heads in ("q_heads", "kv_heads"))
    x = torch.rand(tokens, hidden, dtype=dtype)
    qkv, out = _weights(q + 2 * kv, hidden, dtype), _weights(hidden, q, dtype)
    gate, up, down = (_weights(*size, dtype) for size in ((inner, hidden), (inner, hidden), (hidden, inner)))
    norm = torch.ones(hidden, dtype=dtype)

    def work() -> Tensor:
        first = x + linear(linear(torch.rms_norm(x, (hidden,), norm), qkv)[:, :q], out)
        y = torch.rms_norm(first, (hidden,), norm)
        return first + linear(silu(linear(y, gate)) * linear(y, up), down)

    return work, 2.0 * tokens * sum(w.numel() for w in (qkv, out, gate, up, down))


def _attention(sizes: Mapping[str, Any], dtype: torch.dtype) -> tuple[Work, float]:
    """T new queries against a past and their own causal square."""
    tokens, past, size = sizes["tokens"], sizes["past_tokens"], sizes["head_dim"]
    q = torch.rand(tokens, sizes["q_heads"], size, dtype=dtype)
    pool = torch.rand(past + tokens, 2, sizes["kv_heads"], size, dtype=dtype)
    pairs = tokens * past + tokens * (tokens + 1) / 2

    def work() -> object:
        return attend_spans(q, [(past, past + tokens)], [(pool[:, 0], pool[:, 1], 0)], size**-0.5)

    return work, 4.0 * size * sizes["q_heads"] * pairs


def _stream(sizes: Mapping[str, Any], dtype: torch.dtype) -> tuple[Work, float]:
    """Weights far beyond any cache against one token: what decode and short pieces wait for."""
    rows = max(1, sizes["stream_bytes"] // (_WIDTH * dtype.itemsize))
    weights, x = _weights(rows, _WIDTH, dtype), torch.rand(1, _WIDTH, dtype=dtype)
    return lambda: linear(x, weights), float(weights.numel() * dtype.itemsize)


def _copy(sizes: Mapping[str, Any]) -> tuple[Work, float]:
    source = torch.ones(max(1, sizes["stream_bytes"] // 8))
    target = torch.empty_like(source)
    return lambda: target.copy_(source), float(2 * source.numel() * source.element_size())


def _step(sizes: Mapping[str, Any]) -> Work:
    """The least attention that there is: what a row costs before it computes anything."""
    q = torch.rand(1, 1, sizes["head_dim"])
    kv = torch.rand(_STEP_KEYS, 1, sizes["head_dim"])
    return lambda: attend_spans(q, [(_STEP_KEYS - 1, _STEP_KEYS)], [(kv, kv, 0)], sizes["head_dim"] ** -0.5)


def _weights(rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    return torch.rand(rows, columns).sub_(0.5).div_(columns**0.5).to(dtype)
