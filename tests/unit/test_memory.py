"""Peaks by column arithmetic are those that `verify` replays row by row, for any legal schedule."""

import numpy as np
from hypothesis import given, settings

from jostle import reordered
from mcf import ref
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, unicast, verify
from mcf.schedule.memory import peak_bytes
from mcf.schedule.steps import ATTEND, KEEP, RECV, STREAM
from mcf.testing import random_qkv, schedules
from plans import can_run


@given(schedules())
@settings(max_examples=60)
def test_peaks_equal_the_replay(sched: Schedule) -> None:
    for form in filter(can_run, (sched, unicast(sched))):
        assert tuple(peak_bytes(form).tolist()) == verify(form).peak_bytes


def late_keep(num_layers: int) -> Schedule:
    """Node 0 streams chunk 1's new block, is done with it, and only then receives chunk 0's block, to keep."""
    meta = ScheduleMeta(
        policy="late", num_nodes=2, prompt_tokens=256, chunk_tokens=128, num_layers=num_layers, num_q_heads=1,
        num_kv_heads=1, head_dim=1,
    )  # fmt: skip
    b = Builder(meta, cut(256, 128, 2, contiguous))
    for chunk in range(2):
        for node in range(2):
            b.produce(node, chunk)
            other, new = 1 - node, (chunk, chunk + 1)
            b.send_kv(node, [other], chunk, chunks=new, makers=(node, node + 1), hold=STREAM)
            states = [b.attend(node, chunk, chunks=new, makers=(m, m + 1)) for m in (other, node)]
            if chunk:
                b.send_kv(node, [other], chunk, chunks=(0, 1), makers=(node, node + 1), hold=KEEP)
                states += [b.attend(node, chunk, chunks=(0, 1), makers=(m, m + 1)) for m in (node, other)]
            b.merge(node, chunk, states)
    for node in range(2):
        for verb in (b.drain, b.free):
            verb(node, 2, chunks=(0, 1), makers=(1 - node, 2 - node))
    sched = b.build()
    s = sched.steps
    order = list(range(len(s)))
    for node in range(2):  # the pass posts kept receives first: move them to behind the stream's last use
        loop = [r for r in sched.node_rows(node) if s["chunk"][r] == 1]
        keep = next(r for r in loop if s["kind"][r] == RECV and s["hold"][r] == KEEP)
        use = next(r for r in loop if s["kind"][r] == ATTEND)
        order.insert(use, order.pop(keep))
    return reordered(sched, np.array(order))


def test_a_stream_released_before_a_kept_receive_meets_it_in_the_next_layer() -> None:
    page = 64 * 2 * 4  # bytes of a page of one layer
    for num_layers, peak in ((1, 3 * page), (3, 10 * page)):
        sched = late_keep(num_layers)
        measured = ref.run(sched, *random_qkv(sched.meta)).peak_bytes
        assert tuple(measured) == verify(sched).peak_bytes == tuple(peak_bytes(sched)) == (peak, peak)
