"""The chunk size that `auto` takes, over all workers."""

import pytest

from mcf.engine.planner import make_plan
from simulated import tiny_shape


@pytest.mark.parametrize(
    ("workers", "budget", "prompt", "chunk"),
    [
        (2, None, 5000, 2048),
        (3, None, 5000, 3072),
        (2, None, 1500, 1500),
        (1, None, 5000, 512),
        (2, 1 << 30, 5000, 1024),
    ],
)
def test_several_workers_without_a_budget_take_1024_tokens_each(
    workers: int, budget: int | None, prompt: int, chunk: int
) -> None:
    made = make_plan(tiny_shape(), prompt_tokens=prompt, num_workers=workers, kv_memory_bytes=budget)
    assert made.chunk_tokens == chunk
