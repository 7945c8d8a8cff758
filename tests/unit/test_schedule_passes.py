"""Passes as tables: these rows in, those rows out."""

import pytest

from mcf.cluster import Topology
from mcf.schedule import Builder, Schedule, ScheduleMeta, contiguous, cut, dump, unicast, verify
from mcf.schedule.passes import place_recvs, strip_recvs
from mcf.schedule.steps import KEEP, STREAM

META = ScheduleMeta(
    policy="test", num_nodes=4, prompt_tokens=4, chunk_tokens=4, num_layers=2, num_q_heads=2, num_kv_heads=1,
    head_dim=2, page_tokens=4,
)  # fmt: skip


def meta(**changes: object) -> ScheduleMeta:
    fields = {name: getattr(META, name) for name in META.__dataclass_fields__}
    return ScheduleMeta(**fields | {"budgets": ()} | changes)


def short(sched: Schedule, node: int) -> list[str]:
    """A node's rows without node, stage and heads, which are always the same here."""
    lines = [line.split(": ", 1)[1] for line in dump(sched).splitlines() if line[0].isdigit()]
    words = [line.split() for line in lines if line.startswith(f"n{node} ")]
    return [" ".join(w for w in line[2:] if w != "h0:1" and not w.startswith(("ref=", "after="))) for line in words]


def ring(slots: int) -> Schedule:
    """Every node passes every block on to the next; one chunk."""
    b = Builder(meta(stream_slots=slots), cut(4, 4, 4, contiguous))
    for n in range(4):
        b.produce(n, 0)
        states = []
        for step in range(4):
            maker = (n - step) % 4
            if step < 3:
                b.send_kv(n, [(n + 1) % 4], 0, chunks=(0, 1), makers=(maker, maker + 1))
            states.append(b.attend(n, 0, chunks=(0, 1), makers=(maker, maker + 1)))
        b.merge(n, 0, states)
    return b.build()


def test_a_rings_receives_are_a_double_buffer() -> None:
    assert short(ring(2), 0) == [
        "c0 recv kv c0:1 m3:4 stream from=3",
        "c0 produce c0:1 m0:1",
        "c0 send kv c0:1 m0:1 stream to=1",
        "c0 attend c0:1 m0:1 q=0",
        "c0 send kv c0:1 m3:4 stream to=1",
        "c0 recv kv c0:1 m2:3 stream from=3",
        "c0 attend c0:1 m3:4 q=0",
        "c0 send kv c0:1 m2:3 stream to=1",
        "c0 recv kv c0:1 m1:2 stream from=3",
        "c0 attend c0:1 m2:3 q=0",
        "c0 attend c0:1 m1:2 q=0",
        "c0 merge c0:1 m0:4 q=0",
    ]


@pytest.mark.parametrize(("slots", "early"), [(2, [3]), (3, [2, 3]), (4, [1, 2, 3])])
def test_more_slots_post_more_receives_before_the_dense_work(slots: int, early: list[int]) -> None:
    lines = short(ring(slots), 0)
    before = lines[: lines.index("c0 produce c0:1 m0:1")]
    assert sorted(int(line.split("m")[1][0]) for line in before) == early
    assert verify(ring(slots)).slot_bytes[0] == min(slots, 3) * META.page_bytes


def test_a_receive_never_stands_after_its_forward() -> None:
    """With one slot, the forward of a block stands before the attend that would anchor its receive."""
    lines = short(ring(1), 0)
    for maker in (3, 2):
        recv = lines.index(f"c0 recv kv c0:1 m{maker}:{maker + 1} stream from=3")
        assert recv < lines.index(f"c0 send kv c0:1 m{maker}:{maker + 1} stream to=1")


def two_chunks(**send: int) -> Schedule:
    """Node 0's first block goes to node 1 during chunk 1, whose first attend needs another set."""
    b = Builder(meta(num_nodes=2, prompt_tokens=8), cut(8, 4, 2, contiguous))
    for chunk in (0, 1):
        for n in (0, 1):
            b.produce(n, chunk)
    b.send_kv(0, [1], 1, chunks=(0, 1), makers=(0, 1), **send)
    own = [b.attend(1, 1, chunks=(c, c + 1), makers=(1, 2)) for c in (0, 1)]
    b.merge(1, 1, [*own, b.attend(1, 1, chunks=(0, 1), makers=(0, 1))])
    return b.build()


@pytest.mark.parametrize("send", [{"hold": KEEP}, {"hold": STREAM, "ahead": 1}, {"hold": KEEP, "ahead": 1}])
def test_kept_and_ahead_receives_stand_before_the_dense_work(send: dict[str, int]) -> None:
    lines = short(two_chunks(**send), 1)
    assert "recv kv" in lines[1]
    assert lines[2] == "c1 produce c1:2 m1:2"


def test_late_streams_stand_a_slot_before_their_use() -> None:
    assert short(two_chunks(), 1) == [
        "c0 produce c0:1 m1:2",
        "c1 produce c1:2 m1:2",
        "c1 attend c0:1 m1:2 q=1",
        "c1 recv kv c0:1 m0:1 stream from=0",
        "c1 attend c1:2 m1:2 q=1",
        "c1 attend c0:1 m0:1 q=1",
        "c1 merge c0:2 m0:2 q=1",
    ]


def test_receives_stand_after_drains_and_frees_of_their_chunk() -> None:
    b = Builder(meta(num_nodes=2, prompt_tokens=8), cut(8, 4, 2, contiguous))
    for n in (0, 1):
        b.produce(n, 0)
    b.send_kv(0, [1], 0, chunks=(0, 1), makers=(0, 1), hold=KEEP)
    b.drain(1, 1, chunks=(0, 1), makers=(0, 1))
    b.free(1, 1, chunks=(0, 1), makers=(0, 1))
    b.produce(1, 1)
    b.send_kv(0, [1], 1, chunks=(0, 1), makers=(0, 1), hold=KEEP)
    assert short(b.build(), 1)[2:] == [
        "c1 drain c0:1 m0:1",
        "c1 free c0:1 m0:1",
        "c1 recv kv c0:1 m0:1 keep from=0",
        "c1 produce c1:2 m1:2",
    ]


def test_schedules_with_receives_are_not_placed_twice() -> None:
    with pytest.raises(ValueError, match="has receives already"):
        place_recvs(ring(2))
    assert place_recvs(strip_recvs(ring(2))) == ring(2)


def test_schedules_without_attends_have_their_receives_before_the_dense_work() -> None:
    b = Builder(meta(num_nodes=2), cut(4, 4, 2, contiguous))
    for n in (0, 1):
        b.produce(n, 0)
    b.send_kv(0, [1], 0, chunks=(0, 1), makers=(0, 1))
    assert short(b.build(), 1) == ["c0 recv kv c0:1 m0:1 stream from=0", "c0 produce c0:1 m1:2"]


def tree(topology: str, *, hold: int = STREAM) -> Schedule:
    """Node 0 sends its block to all; each attends its own block first."""
    b = Builder(meta(topology=topology), cut(4, 4, 4, contiguous))
    for n in range(4):
        b.produce(n, 0)
    b.send_kv(0, [1, 2, 3], 0, chunks=(0, 1), makers=(0, 1), hold=hold)
    for n in range(4):
        b.attend(n, 0, chunks=(0, 1), makers=(n, n + 1))
        if n:
            b.attend(n, 0, chunks=(0, 1), makers=(0, 1))
    return b.build()


def test_unicast_of_a_star() -> None:
    assert short(unicast(tree("switch")), 0) == [
        "c0 produce c0:1 m0:1",
        "c0 send kv c0:1 m0:1 stream to=1",
        "c0 send kv c0:1 m0:1 stream to=2",
        "c0 send kv c0:1 m0:1 stream to=3",
        "c0 attend c0:1 m0:1 q=0",
    ]


def test_unicast_of_a_tree_forwards_before_the_first_use() -> None:
    plain = unicast(tree("ring"))
    assert short(plain, 0)[1:3] == ["c0 send kv c0:1 m0:1 stream to=1", "c0 send kv c0:1 m0:1 stream to=3"]
    assert short(plain, 1) == [
        "c0 recv kv c0:1 m0:1 stream from=0",
        "c0 produce c0:1 m1:2",
        "c0 attend c0:1 m1:2 q=1",
        "c0 send kv c0:1 m0:1 stream to=2",
        "c0 attend c0:1 m0:1 q=1",
    ]
    assert short(plain, 2)[0] == "c0 recv kv c0:1 m0:1 stream from=1"


def test_unicast_leaves_plain_sends_alone() -> None:
    assert unicast(ring(2)) == ring(2)
    assert unicast(unicast(tree("ring"))) == unicast(tree("ring"))


def remote() -> Schedule:
    """On a ring of 4, node 0's queries go to nodes 1 and 2; node 2's state comes back through node 1."""
    b = Builder(meta(topology="ring"), cut(4, 4, 4, contiguous))
    for n in range(4):
        b.produce(n, 0)
    b.send_query(0, [1, 2], 0, route=((0, 1), (1, 2)))
    one = b.attend(1, 0, chunks=(0, 1), makers=(1, 2), q=0)
    two = b.attend(2, 0, chunks=(0, 1), makers=(2, 3), q=0)
    states = [b.send_state(1, [0], 0, of=one), b.send_state(2, [1, 0], 0, of=two, route=((2, 1), (1, 0)))]
    b.merge(0, 0, [b.attend(0, 0, chunks=(0, 1), makers=(0, 1)), *states])
    return b.build()


def test_unicast_forwards_queries_before_attends_and_states_at_the_end() -> None:
    plain = unicast(remote())
    assert short(plain, 1) == [
        "c0 recv query c0:1 m0:1 q=0 from=0",
        "c0 recv state c0:1 m2:3 q=0 from=2",
        "c0 produce c0:1 m1:2",
        "c0 send query c0:1 m0:1 q=0 to=2",
        "c0 attend c0:1 m1:2 q=0",
        "c0 send state c0:1 m1:2 q=0 to=0",
        "c0 send state c0:1 m2:3 q=0 to=0",
    ]
    forward = plain.node_rows(1)[-1]
    assert [plain.step(r).kind for r in plain.after_of(forward)] == [3]  # the state that arrived, not the attend
    merge = plain.node_rows(0)[-1]
    inputs = [plain.step(r) for r in plain.after_of(merge)]
    assert [(i.m_lo, i.dst) for i in inputs] == [(0, -1), (1, 1), (2, 1)]


def test_forwards_of_several_chunks_on_a_node_without_rows_keep_the_order_of_chunks() -> None:
    # A ring of 5, 7 tokens in chunks of 3: some nodes have no tokens, and only pass multicasts on.
    meta = ScheduleMeta(
        policy="relay", num_nodes=5, prompt_tokens=7, chunk_tokens=3, num_layers=1, num_q_heads=2, num_kv_heads=1,
        head_dim=4, topology="ring",
    )  # fmt: skip
    b, topology = Builder(meta, cut(7, 3, 5, contiguous)), Topology.parse("ring", 5)
    for chunk in range(b.num_chunks):
        for node in range(5):
            others = [m for m in range(5) if m != node]
            b.produce(node, chunk)
            new = (chunk, chunk + 1)
            route = topology.multicast(node, others)
            b.send_kv(node, others, chunk, chunks=new, makers=(node, node + 1), hold=KEEP, route=route)
            states = [b.attend(node, chunk, chunks=(0, chunk), makers=(0, 5))]
            states += [b.attend(node, chunk, chunks=new, makers=(m, m + 1)) for m in range(5)]
            b.merge(node, chunk, states)
    for node in range(5):
        for verb in (b.drain, b.free):
            for makers in ((0, node), (node + 1, 5)):
                verb(node, b.num_chunks, chunks=(0, b.num_chunks), makers=makers)
    b.decode()
    report = verify(unicast(b.build()))
    assert report.replica_factor == (5.0, 5.0, 5.0)
