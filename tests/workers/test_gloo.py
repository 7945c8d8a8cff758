"""GlooTransport in threads of one process: no global state, so several ranks may live together."""

import contextlib
import os
import socket
import threading
from types import SimpleNamespace

import pytest
import torch

from mcf.dist.transport import MEET_S, GlooTransport, LinkError, _address_of
from mcf.errors import TransportError
from mcf.schedule.steps import NEW_KV, STATE_BYTES

pytestmark = pytest.mark.dist


def gloo_world(size: int, timeout_s: float = 60.0) -> list[GlooTransport]:
    """Return `size` joined transports."""
    meeting = socket.create_server(("127.0.0.1", 0))
    port, found = meeting.getsockname()[1], {}
    fd = meeting.detach()

    def join(rank: int) -> None:
        listen_fd = -1 if rank else fd
        found[rank] = GlooTransport(rank=rank, world_size=size, port=port, listen_fd=listen_fd, timeout_s=timeout_s)

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[rank] for rank in range(size)]


@pytest.fixture(scope="module")
def three():
    return gloo_world(3)


def test_tensors_of_any_dtype_arrive_and_are_counted(three):
    before = dict(three[0].counters)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        sent = torch.arange(6).reshape(2, 3).to(dtype)
        got = torch.zeros_like(sent)
        recv = three[2].irecv(got, 0, 5, STATE_BYTES)
        three[0].isend(sent, 2, 5, STATE_BYTES).wait()
        recv.wait()
        recv.wait()
        assert torch.equal(got, sent)
    key = (0, 2, STATE_BYTES)
    assert three[0].counters[key] - before.get(key, 0) == 6 * (4 + 2 + 8 + 1)
    assert three[2].counters[key] == three[0].counters[key]


def test_transfers_with_one_tag_keep_their_order_and_tags_do_not_mix(three):
    got = [torch.zeros(2) for _ in range(8)]
    handles = [three[1].irecv(tensor, 0, 10 + i % 2, NEW_KV) for i, tensor in enumerate(got)]
    sends = [three[0].isend(torch.full((2,), float(i)), 1, 10 + i % 2, NEW_KV) for i in (1, 3, 0, 2, 5, 4, 7, 6)]
    for handle in [*sends, *handles]:
        handle.wait()
    assert [int(tensor[0]) for tensor in got] == list(range(8))


def test_a_send_waits_for_its_receive(three):
    send = three[0].isend(torch.ones(1), 1, 20, NEW_KV)
    ended = threading.Event()
    waiter = threading.Thread(target=lambda: (send.wait(), ended.set()))
    waiter.start()
    assert not ended.is_set()
    three[1].irecv(torch.zeros(1), 0, 20, NEW_KV).wait()
    waiter.join()
    assert ended.is_set()


def test_gloo_threads_are_polite_and_the_calling_thread_keeps_its_scheduling(three):
    assert len(three) == 3
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    policies = {os.sched_getscheduler(int(tid)) for tid in os.listdir("/proc/self/task")}
    assert os.SCHED_BATCH in policies


def test_a_store_is_opened_by_its_address_whatever_its_name():
    with socket.create_server(("127.0.0.1", 0)) as open_door:
        port = open_door.getsockname()[1]
        assert _address_of("localhost", port) == "127.0.0.1"
    assert _address_of("localhost", port) == "localhost"  # nobody is there
    assert _address_of("10.1.2.3", port) == "10.1.2.3"
    assert _address_of("fe80::1", port) == "fe80::1"


def test_a_world_of_one_joins():
    (alone,) = gloo_world(1)
    with pytest.raises(ValueError, match="peer 0"):
        alone.isend(torch.ones(1), 0, 0, NEW_KV)
    alone.close()
    alone.close()


def test_a_peer_that_leaves_is_named():
    left, right = gloo_world(2)
    recv = left.irecv(torch.zeros(1), 1, 0, NEW_KV)
    right.close()
    with pytest.raises(LinkError, match=r"^link to worker 1 broke: Connection closed by peer") as caught:
        recv.wait()
    assert caught.value.peer == 1
    with pytest.raises(TransportError, match="worker 1 is closed"):
        right.irecv(torch.zeros(1), 0, 0, NEW_KV)


def test_a_wait_that_times_out_breaks_the_link_for_good():
    left, right = gloo_world(2, timeout_s=0.2)
    with pytest.raises(LinkError, match="^link to worker 1 broke: Timed out"):
        left.irecv(torch.zeros(1), 1, 0, NEW_KV).wait()
    with pytest.raises(LinkError, match="link to worker 1 broke"):
        left.irecv(torch.zeros(1), 1, 0, NEW_KV).wait()
    with contextlib.suppress(LinkError):
        right.close()


def test_a_wait_may_take_longer_than_the_meeting(monkeypatch):
    asked = []

    class Patient:
        """A transfer that never ends in time."""

        def wait(self, timeout):
            asked.append(timeout.total_seconds())

    left, right = gloo_world(2, timeout_s=2 * MEET_S)
    monkeypatch.setattr(left, "_group", SimpleNamespace(recv=lambda *_: Patient(), send=lambda *_: Patient()))
    left.irecv(torch.zeros(1), 1, 0, NEW_KV).wait()
    left.isend(torch.zeros(1), 1, 0, NEW_KV).wait()
    assert asked == [2 * MEET_S] * 2
    right.close()


def test_a_peer_that_never_comes_is_one_clear_line(monkeypatch):
    monkeypatch.setattr("mcf.dist.transport.MEET_S", 0.2)
    meeting = socket.create_server(("127.0.0.1", 0))
    port = meeting.getsockname()[1]
    with pytest.raises(TransportError, match="^worker 0 could not join the 2 workers: ") as caught:
        GlooTransport(rank=0, world_size=2, port=port, listen_fd=meeting.detach(), timeout_s=1800.0)
    assert "\n" not in str(caught.value)
