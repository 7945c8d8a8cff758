"""The Builder: verbs, empty sets, default routes, the decode template."""

from dataclasses import replace

import numpy as np
import pytest

from mcf.errors import ScheduleError
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, dump, verify
from mcf.schedule.steps import ALL, ATTEND, DECODE, DRAIN, FREE, KEEP, MERGE, PRODUCE, RECV, SEND, STATE

META = ScheduleMeta(
    policy="test", num_nodes=4, prompt_tokens=6, chunk_tokens=3, num_layers=2, num_q_heads=4, num_kv_heads=2,
    head_dim=4, page_tokens=4,
)  # fmt: skip


def builder(**changes: object) -> Builder:
    """Chunk 0: tokens on nodes 0, 1, 2; chunk 1: on nodes 3, 0, 1."""
    meta = replace(META, **changes)  # type: ignore[arg-type]
    return Builder(meta, cut(6, 3, 4, contiguous))


def rows(sched: Schedule) -> list[str]:
    """The rows of the text form, without numbers."""
    return [line.split(": ", 1)[1] for line in dump(sched).splitlines() if line[0].isdigit()]


def test_each_verb_writes_one_row() -> None:
    b = builder()
    b.produce(0, 0)
    b.send_kv(0, [1], 0, chunks=(0, 1), makers=(0, 1), hold=KEEP)
    b.send_query(0, [2], 0, heads=(0, 2))
    b.send_state(0, [1], 0, of=b.attend(0, 0, chunks=(0, 1), makers=(0, 1), q=1))
    b.merge(0, 0, [b.attend(0, 0, chunks=(0, 1), makers=(0, 2))])
    b.drain(0, 1, chunks=(0, 1), makers=(1, 2))
    b.free(0, 1, chunks=(0, 1), makers=(1, 2))
    assert [line for line in rows(b.build()) if line.startswith("n0")] == [
        "n0 prefill c0 produce c0:1 m0:1 h0:2",
        "n0 prefill c0 send kv c0:1 m0:1 h0:2 keep to=1",
        "n0 prefill c0 send query c0:1 m0:1 h0:2 q=0 to=2",
        "n0 prefill c0 attend c0:1 m0:1 h0:2 q=1",
        "n0 prefill c0 send state c0:1 m0:1 h0:2 q=1 to=1 after=3",
        "n0 prefill c0 attend c0:1 m0:2 h0:2 q=0",
        "n0 prefill c0 merge c0:1 m0:4 h0:2 q=0 after=5",
        "n0 prefill c1 drain c0:1 m1:2 h0:2",
        "n0 prefill c1 free c0:1 m1:2 h0:2",
    ]


def test_empty_sets_issue_no_row() -> None:
    b = builder()
    assert b.produce(3, 0) is None
    assert b.send_kv(0, [1], 1, chunks=(0, 1), makers=(3, 4)) is None
    assert b.send_kv(0, [0], 0, chunks=(0, 1), makers=(0, 1)) is None
    assert b.send_kv(0, [], 0, chunks=(0, 1), makers=(0, 1)) is None
    assert b.send_query(3, [0], 0) is None
    assert b.send_state(0, [1], 0, of=None) is None
    assert b.attend(0, 0, chunks=(0, 1), makers=(3, 4)) is None
    assert b.attend(0, 0, chunks=(0, 1), makers=(0, 1), q=3) is None
    assert b.merge(0, 0, [None, None]) is None
    assert b.drain(0, 1, chunks=(0, 1), makers=(3, 4)) is None
    assert b.free(0, 1, chunks=(1, 1), makers=(0, 4)) is None
    assert len(b.build()) == 0


def test_tokens_of_sets() -> None:
    b = builder()
    assert b.num_chunks == 2
    assert b.tokens_in((0, 2), (0, 4)) == 6
    assert b.tokens_in((0, 1), (3, 4)) == 0
    assert [b.has_tokens(n, 1) for n in range(4)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("topology", "dsts", "text"),
    [
        ("switch", [1], "to=1"),
        ("switch", [1, 2, 3], "route=0 [0>1,0>2,0>3]"),
        ("ring", [3], "to=3"),
        ("ring", [2], "to=2 route=0 [0>1,1>2]"),
        ("ring", [1, 2, 3], "route=0 [0>1,0>3,1>2]"),
    ],
)
def test_default_routes_follow_the_topology(topology: str, dsts: list[int], text: str) -> None:
    b = builder(topology=topology)
    b.produce(0, 0)
    b.send_kv(0, dsts, 0, chunks=(0, 1), makers=(0, 1))
    sched = b.build()
    line = next(line for line in rows(sched) if " send " in line).split("stream ", 1)[1]
    route = "".join(f" [{','.join(f'{a}>{b}' for a, b in edges)}]" for edges in sched.routes)
    assert line + route == text


def test_every_receiver_posts_a_receive_that_names_the_send() -> None:
    b = builder()
    b.produce(1, 0)
    send = b.send_kv(1, [0, 2, 3], 0, chunks=(0, 1), makers=(1, 2))
    sched = b.build()
    s = sched.steps
    recvs = s[s["kind"] == RECV]
    assert send is not None
    assert recvs["node"].tolist() == [0, 2, 3]
    assert (s["kind"][recvs["ref"]] == SEND).all()
    assert set(recvs["dst"].tolist()) == {1}


def test_merges_list_states_by_first_maker_then_chunk() -> None:
    b = builder()
    for n in range(4):
        b.produce(n, 0)
        b.produce(n, 1)
    sets = [((1, 2), 3), ((0, 1), 2), ((1, 2), 0), ((0, 1), 1), ((0, 1), 0), ((1, 2), 1)]
    states = [b.attend(0, 1, chunks=chunks, makers=(m, m + 1)) for chunks, m in sets]
    b.merge(0, 1, states)
    sched = b.build()
    merge = int((sched.steps["kind"] == MERGE).argmax())
    inputs = sched.steps[list(sched.after_of(merge))]
    assert list(zip(inputs["m_lo"].tolist(), inputs["c_lo"].tolist(), strict=True)) == sorted(
        (m, c[0]) for c, m in sets
    )


@pytest.mark.parametrize("topology", ["switch", "ring"])
def test_decode_template(topology: str) -> None:
    b = builder(topology=topology)
    b.decode()
    s = b.build().steps
    assert set(s["stage"].tolist()) == {DECODE}
    for node in range(4):
        mine = s[s["node"] == node]
        assert (mine["kind"] == PRODUCE).sum() == (mine["kind"] == ATTEND).sum() == (mine["kind"] == MERGE).sum() == 1
        assert ((mine["kind"] == RECV) & (mine["payload"] == STATE)).sum() == 3
        assert set(mine["q"][mine["kind"] == ATTEND].tolist()) == {ALL}
        assert mine["m_lo"][mine["kind"] == ATTEND].tolist() == [node]


def test_decode_on_one_node_sends_nothing() -> None:
    b = Builder(replace(META, num_nodes=1, budgets=()), cut(6, 3, 1, contiguous))
    b.decode()
    assert b.build().steps["kind"].tolist() == [PRODUCE, ATTEND, MERGE]


def test_decode_attends_what_a_node_owns_not_what_it_made() -> None:
    """Node 1 makes nothing of the prompt, so that its empty blocks join those it owns."""
    owners = {(c, 0, 0): 1 for c in range(2)}
    b = Builder(replace(META, num_nodes=2, shares=(0, 6), budgets=()), cut(6, 3, 1, contiguous), owners)
    b.decode()
    lines = [line for line in rows(b.build()) if " attend " in line]
    assert lines == [
        "n0 decode c2 attend c2:3 m0:1 h0:2 q=all",
        "n1 decode c2 attend c0:2 m0:2 h0:2 q=all",
        "n1 decode c2 attend c2:3 m1:2 h0:2 q=all",
    ]


def test_retiring_in_the_last_section() -> None:
    b = builder()
    b.drain(0, 2, chunks=(0, 2), makers=(1, 2))
    b.free(0, 2, chunks=(0, 2), makers=(1, 2))
    assert rows(b.build()) == ["n0 converge c2 drain c0:2 m1:2 h0:2", "n0 converge c2 free c0:2 m1:2 h0:2"]
    assert b.build().steps["kind"].tolist() == [DRAIN, FREE]


def test_owners_must_be_nodes() -> None:
    with pytest.raises(ScheduleError, match="not one of the 4 nodes"):
        Builder(META, cut(6, 3, 4, contiguous), {(0, 0, 0): 4})


def test_rows_may_be_written_in_any_node_order() -> None:
    def write(order: list[int]) -> Schedule:
        b = builder()
        for n in order:
            b.produce(n, 0)
        kept = {n: b.attend(n, 0, chunks=(0, 1), makers=(n, n + 1)) for n in order}
        for n in order:
            b.merge(n, 0, [kept[n]])
        return b.build()

    assert write([0, 1, 2]) == write([2, 0, 1])


def test_one_node_is_legal() -> None:
    b = Builder(replace(META, num_nodes=1, budgets=()), cut(6, 3, 1, contiguous))
    for chunk in range(2):
        b.produce(0, chunk)
        b.merge(0, chunk, [b.attend(0, chunk, chunks=(0, chunk + 1), makers=(0, 1))])
    b.decode()
    report = verify(b.build())
    assert report.shares == (6,)
    assert np.array_equal(report.replica_factor, [1, 1])
