"""A row's attention as memory and commands: the compute half's model makes of it what the attention model says."""

import numpy as np
import pytest

from mcf.rtl.commands import NUM_SLOTS, ComputeOp, unpack_command
from mcf.rtl.golden.attention import Queries, Shard
from mcf.rtl.golden.compute import ComputeModel
from mcf.rtl.golden.state import to_beats
from mcf.rtl.merges import OUT_BEATS
from mcf.rtl.registers import NUM_COMMANDS
from mcf.rtl.rows import RowHead, room_for


def row_head(group: int, num_tokens: int, seen: list[int]) -> tuple[RowHead, Shard]:
    rng = np.random.default_rng(group)
    shape = (num_tokens, 128)
    shard = Shard(
        k=rng.integers(-7, 8, shape), v=rng.integers(-7, 8, shape),
        k_scale=rng.integers(1, 1 << 16, num_tokens), v_scale=rng.integers(1, 1 << 16, num_tokens),
    )  # fmt: skip
    queries = [
        Queries(
            q=rng.integers(-2047, 2048, (group, 128)),
            scale=rng.integers(1 << 15, 1 << 16, group),
            shift=rng.integers(8, 12, group),
        )
        for _ in seen
    ]
    return RowHead(head=1, base=4096, num_tokens=num_tokens, queries=queries, seen=seen, child=3), shard


@pytest.mark.parametrize("group", [1, 2, 6, 8, 12, 16])
def test_the_model_of_the_compute_half_makes_the_records(group: int) -> None:
    """Also for queries that see nothing, part of a tile, and just a whole one."""
    seen = [0, 1, 127, 128, 129, 200, 300, 300]
    job, shard = row_head(group, 300, seen)
    image = bytearray(job.base + room_for(300, len(seen)))
    for address, data in job.parts(shard):
        assert address + len(data) <= len(image)
        image[address : address + len(data)] = data
    batches = list(job.work(shard))
    model = ComputeModel(image=image)
    model.run([word for batch in batches for word in batch.commands])
    found = [to_beats(state, child, OUT_BEATS) for state, child in model.states]
    assert found == [record for batch in batches for record in batch.records]
    assert [t for batch in batches for t in batch.tokens] == list(range(len(seen)))
    assert {child for _, child in model.states} == {3}


@pytest.mark.parametrize("group", [1, 2, 6, 8, 12, 16])
def test_a_batch_leaves_the_one_before_alone_or_waits_for_it(group: int) -> None:
    """Two batches fit the ring of commands; neighbours share no slot, or the later one has a fence."""
    job, shard = row_head(group, 64, [64] * 20)
    before: set[int] = set()
    for number, batch in enumerate(job.work(shard)):
        assert 2 * len(batch.commands) <= NUM_COMMANDS
        fields = [unpack_command(word) for word in batch.commands]
        attends = [f for f in fields if f["op"] == ComputeOp.ATTEND]
        slots = {f["slot"] + i for f in attends for i in range(f["count"])}
        assert max(slots) < NUM_SLOTS
        assert len(slots) == group * len(batch.tokens)
        assert fields[0]["fence"] == (number == 0 or not slots.isdisjoint(before))
        before = slots


def test_rows_without_tokens_finish_empty() -> None:
    job, shard = row_head(2, 0, [0, 0])
    image = bytearray(job.base + room_for(0, 2))
    for address, data in job.parts(shard):
        image[address : address + len(data)] = data
    model, batches = ComputeModel(image=image), list(job.work(shard))
    model.run([word for batch in batches for word in batch.commands])
    assert [int(state.sum_) for state, _ in model.states] == [0] * 4
