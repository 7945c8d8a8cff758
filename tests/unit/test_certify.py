"""The certificate: what the workers' directories say, counted in token-heads."""

from typing import Any

import pytest

from mcf.engine.result import certify
from mcf.errors import RunError
from mcf.schedule.kv import DRAINING, VALID

Blocks = list[list[list[int]]]


def judge(blocks: Blocks, num_tokens: int, head_cuts: tuple[int, ...]) -> dict[str, Any]:
    return certify(blocks, num_tokens=num_tokens, head_cuts=head_cuts, page_tokens=64)


@pytest.mark.parametrize("tokens", [1, 7, 100, 1009])
def test_thirds_of_tokens_add_up(tokens: int) -> None:
    """Worker n holds head group n of three workers' blocks; in floats the thirds of some sizes add up to a bit less."""
    blocks = [[[0, m, g, VALID, tokens + m] for m in range(3)] for g in range(3)]
    certificate = judge(blocks, 3 * tokens + 3, (0, 1, 2, 3))
    assert certificate["tokens_per_worker"] == [tokens + 1] * 3
    uneven = [[*blocks[0], blocks[1][0]], blocks[1][1:], blocks[2]]
    certificate = judge(uneven, 3 * tokens + 3, (0, 1, 2, 3))
    assert sum(certificate["tokens_per_worker"]) == pytest.approx(3 * tokens + 3)
    assert certificate["complete"] is True


def test_groups_of_heads_weigh_what_they_hold() -> None:
    certificate = judge([[[0, 0, 0, VALID, 400]], [[0, 0, 1, VALID, 400]]], 400, (0, 1, 4))
    assert certificate["tokens_per_worker"] == [100, 300]
    assert certificate["balanced_within_a_page"] is False


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ([[[0, 0, 0, VALID, 8]], []], "hold 4 tokens after prefill: expected 8"),
        ([[[0, 0, 0, VALID, 8]], [[0, 0, 1, DRAINING, 8]]], "worker 1 ends prefill with a block that is draining"),
        ([[[0, 0, 0, VALID, 8]], [[0, 0, 0, VALID, 8]]], "lies on workers 0 and 1: expected one owner"),
    ],
)
def test_what_is_not_complete_is_refused(blocks: Blocks, words: str) -> None:
    with pytest.raises(RunError, match=words):
        judge(blocks, 8, (0, 1, 2))
