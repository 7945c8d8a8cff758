import pytest
import torch

from mcf.dist.local import LocalWorld
from mcf.dist.transport import MAX_TAG, LinkError
from mcf.errors import TransportError
from mcf.schedule.steps import FETCHED_KV, NEW_KV, STATE_BYTES

SEEDS = [None, 0, 1, 2]


def exchange(transport):
    """All send their rank to all, tag 3; return what came, by peer."""
    peers = [peer for peer in range(transport.world_size) if peer != transport.rank]
    mine = torch.full((5,), float(transport.rank))
    theirs = {peer: torch.empty(5) for peer in peers}
    handles = [transport.irecv(theirs[peer], peer, 3, STATE_BYTES) for peer in peers]
    handles += [transport.isend(mine, peer, 3, STATE_BYTES) for peer in peers]
    for handle in handles:
        handle.wait()
    return {peer: tensor.tolist() for peer, tensor in theirs.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_all_exchange_with_all(seed):
    got = LocalWorld(4, seed=seed).run(exchange)
    assert got == [{peer: [float(peer)] * 5 for peer in range(4) if peer != rank} for rank in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_transfers_with_one_tag_keep_their_order(seed):
    def body(transport):
        out = [torch.full((2,), float(i)) for i in range(6)]
        got = [torch.empty(2) for _ in out]
        if transport.rank == 0:
            handles = [transport.isend(tensor, 1, i % 2, NEW_KV) for i, tensor in enumerate(out)]
        else:
            handles = [transport.irecv(tensor, 0, i % 2, NEW_KV) for i, tensor in enumerate(got)]
        for handle in reversed(handles):
            handle.wait()
        return [tensor[0].item() for tensor in got]

    assert LocalWorld(2, seed=seed).run(body)[1] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def arrival_order(seed: int) -> list[int]:
    """Post eight receives with eight tags, wait for the last posted, and see which others have arrived by then."""
    world = LocalWorld(2, seed=seed)
    sender, receiver = world.transports
    for tag in range(8):
        sender.isend(torch.ones(1), 1, tag, NEW_KV)
    got = [torch.empty(1) for _ in range(8)]
    handles = [receiver.irecv(tensor, 0, tag, NEW_KV) for tag, tensor in enumerate(got)]
    handles[-1].wait()
    return [tag for tag, tensor in enumerate(got) if not torch.isnan(tensor).any()]


def test_a_seed_delays_and_reorders_the_same_way_each_time():
    orders = [arrival_order(seed) for seed in range(8)]
    assert orders == [arrival_order(seed) for seed in range(8)]
    assert all(7 in order for order in orders)
    assert len({tuple(order) for order in orders}) > 2


def test_bytes_are_counted_at_both_ends():
    def body(transport):
        tensor = torch.zeros(3, dtype=torch.bfloat16)
        if transport.rank == 0:
            transport.isend(tensor, 1, 0, NEW_KV).wait()
            transport.isend(tensor, 1, 0, NEW_KV).wait()
            transport.isend(tensor.double(), 1, 1, FETCHED_KV).wait()
        else:
            transport.irecv(tensor, 0, 0, NEW_KV).wait()
            transport.irecv(tensor, 0, 0, NEW_KV).wait()
            transport.irecv(tensor.double(), 0, 1, FETCHED_KV).wait()
        return dict(transport.counters)

    assert LocalWorld(2).run(body) == [{(0, 1, NEW_KV): 12, (0, 1, FETCHED_KV): 24}] * 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("theirs", [torch.zeros(4), torch.zeros(3, dtype=torch.int32)])
def test_sizes_and_dtypes_must_match_at_both_ends(seed, theirs):
    left, right = LocalWorld(2, seed=seed).transports
    handles = [left.isend(torch.zeros(3), 1, 0, NEW_KV), right.irecv(theirs, 0, 0, NEW_KV)]
    for handle in handles:
        with pytest.raises(LinkError, match=r"0 -> 1 tag 0 is torch.float32 of shape \(3,\)"):
            handle.wait()


def test_a_send_ends_only_after_its_receive_is_posted():
    left, right = LocalWorld(2, timeout_s=0.0).transports
    handle = left.isend(torch.ones(1), 1, 0, NEW_KV)
    with pytest.raises(LinkError, match="send 0 -> 1 tag 0 did not end"):
        handle.wait()
    right.irecv(torch.empty(1), 0, 0, NEW_KV).wait()
    handle.wait()


def test_waiting_twice_is_harmless():
    left, right = LocalWorld(2).transports
    handle = right.irecv(torch.empty(1), 0, 0, NEW_KV)
    left.isend(torch.ones(1), 1, 0, NEW_KV).wait()
    handle.wait()
    handle.wait()


@pytest.mark.parametrize("seed", SEEDS)
def test_an_error_in_one_thread_wakes_all_others_and_is_the_one_raised(seed):
    def body(transport):
        if transport.rank == 2:
            raise KeyError("the reason")
        transport.irecv(torch.empty(1), 2, 0, NEW_KV).wait()

    world = LocalWorld(3, seed=seed)
    with pytest.raises(KeyError, match="the reason"):
        world.run(body)
    with pytest.raises(TransportError, match="aborted: worker 2 raised KeyError"):
        world.transports[0].isend(torch.ones(1), 1, 0, NEW_KV)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_leaves_breaks_its_own_links_only(seed):
    one, two, three = LocalWorld(3, seed=seed).transports
    waiting = one.irecv(torch.empty(1), 2, 0, NEW_KV)
    three.close()
    with pytest.raises(LinkError, match="worker 2 broke: it has left") as caught:
        waiting.wait()
    assert caught.value.peer == 2
    with pytest.raises(TransportError, match="worker 2 is closed"):
        three.isend(torch.ones(1), 0, 0, NEW_KV)
    got = torch.empty(1)
    handle = two.irecv(got, 0, 0, NEW_KV)
    one.isend(torch.ones(1), 1, 0, NEW_KV).wait()
    handle.wait()
    assert got.item() == 1.0


@pytest.mark.parametrize(
    ("tensor", "peer", "tag", "purpose", "says"),
    [
        (torch.zeros(2), 0, 0, NEW_KV, "peer 0"),
        (torch.zeros(2), 2, 0, NEW_KV, "peer 2"),
        (torch.zeros(2), -1, 0, NEW_KV, "peer -1"),
        (torch.zeros(2), 1, -1, NEW_KV, "tag -1"),
        (torch.zeros(2), 1, MAX_TAG + 1, NEW_KV, "tag 2147483648"),
        (torch.zeros(2), 1, 0, 9, "purpose 9"),
        (torch.zeros(2, 2).T[:1], 1, 0, NEW_KV, "expected a contiguous"),
        (torch.zeros(0), 1, 0, NEW_KV, "non-empty"),
    ],
)
def test_bad_posts_are_refused_and_not_counted(tensor, peer, tag, purpose, says):
    transport = LocalWorld(2).transports[0]
    for post in (transport.isend, transport.irecv):
        with pytest.raises(ValueError, match=says):
            post(tensor, peer, tag, purpose)
    assert not transport.counters


def test_memory_that_is_under_way_cannot_be_posted_again():
    memory = torch.zeros(8)
    left, right = LocalWorld(2).transports
    send = left.isend(memory[:4], 1, 0, NEW_KV)
    left.isend(memory[2:6], 1, 1, NEW_KV)  # two may read the same
    with pytest.raises(TransportError, match="the receive 1 -> 0 tag 2 takes the memory of the send 0 -> 1 tag 0"):
        left.irecv(memory[3:5], 1, 2, NEW_KV)
    right.irecv(torch.empty(4), 0, 0, NEW_KV)
    send.wait()
    left.irecv(memory[:2], 1, 2, NEW_KV)
    with pytest.raises(TransportError, match="the send 0 -> 1 tag 3 takes the memory of the receive 1 -> 0 tag 2"):
        left.isend(memory[:1], 1, 3, NEW_KV)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_transfers_that_are_held_back_all_arrive(seed):
    got = LocalWorld(3, seed=seed, hold_s=0.0005).run(exchange)
    assert got == [{peer: [float(peer)] * 5 for peer in range(3) if peer != rank} for rank in range(3)]
