"""Who is blamed, without processes: channels are real, processes are stand-ins, the clock is a number."""

import socket

import pytest

from mcf.dist.control import Channel
from mcf.dist.watch import STARTING_S, Watch
from mcf.errors import UserError, WorkerFailedError, WorkerLostError, WorkerSilentError


class Stand:
    """A worker process that does what the test says."""

    def __init__(self, rank: int) -> None:
        ours, theirs = socket.socketpair()
        self.rank = rank
        self.host = ""
        self.channel = Channel(ours, peer=f"worker {rank}")
        self.far = Channel(theirs, peer="the head")
        self.socket = theirs
        self.code: int | None = None
        self.stopped = False

    def is_dead(self) -> bool:
        return self.code is not None

    def is_stopped(self) -> bool:
        return self.stopped

    def was_killed(self) -> bool:
        return (self.code or 0) < 0

    def may_be_silent_while_starting(self) -> bool:
        return not self.stopped

    def why_lost(self) -> str:
        return f"code {self.code}"

    def die(self, code: int) -> None:
        self.code = code
        self.far.close()

    def report(self, message: str, **fields) -> None:
        self.far.send("error", kind="X", message=message, **{"user": False, **fields})


class Clock:
    """Time that passes when told, and a tick at each look, so that no loop lasts for ever."""

    now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 0.01
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def stands():
    stands = [Stand(rank) for rank in range(3)]
    yield stands
    for stand in stands:
        stand.channel.close()
        stand.far.close()


@pytest.fixture
def watch(stands, clock):
    watch = Watch(stands, silent_s=4.0, clock=clock)
    for worker in watch.workers:
        worker.has_joined = True
    yield watch
    watch.close()


def test_frames_wait_in_order_and_beats_are_swallowed(watch, stands):
    for token in (1, 2):
        stands[1].far.send("beat")
        stands[1].far.send("ping", token=token)
    watch.pump(0.0, "decode")
    assert [[frame["token"] for frame in worker.inbox] for worker in watch.workers] == [[], [1, 2], []]


def test_a_dead_worker_is_lost(watch, stands):
    stands[1].die(-9)
    with pytest.raises(WorkerLostError, match="worker 1 was lost during decode: code -9") as caught:
        watch.pump(0.0, "decode")
    assert (caught.value.rank, caught.value.phase) == (1, "decode")


def test_a_worker_that_only_closes_its_channel_is_lost(watch, stands):
    stands[2].far.close()
    with pytest.raises(WorkerLostError, match="worker 2"):
        watch.pump(0.0, "decode")


def test_of_two_dead_the_one_killed_by_a_signal_is_named(watch, stands):
    stands[0].die(1)
    stands[2].die(-9)
    with pytest.raises(WorkerLostError, match="worker 2"):
        watch.pump(0.0, "decode")


def test_a_dead_peer_is_blamed_for_a_broken_link(watch, stands):
    stands[0].report("link to worker 1 broke", peer=1)
    stands[1].die(-9)
    with pytest.raises(WorkerLostError, match="worker 1"):
        watch.pump(0.0, "prefill")


def test_a_peer_that_dies_a_little_later_is_blamed_too(watch, stands, clock, monkeypatch):
    stands[0].report("link to worker 1 broke", peer=1)
    read = watch._read

    def read_then_die(timeout_s, phase):
        read(timeout_s, phase)
        if timeout_s:
            stands[1].die(-11)

    monkeypatch.setattr(watch, "_read", read_then_die)
    with pytest.raises(WorkerLostError, match="worker 1"):
        watch.pump(0.0, "prefill")


def test_an_error_of_its_own_is_blamed_before_a_broken_link(watch, stands):
    stands[0].report("link to worker 2 broke", peer=2)
    stands[2].report("no memory left", trace="Traceback: where")
    with pytest.raises(WorkerFailedError, match="worker 2 failed during prefill: no memory left") as caught:
        watch.pump(0.0, "prefill")
    assert caught.value.__notes__ == ["Traceback: where"]


def test_a_broken_link_alone_is_reported_as_it_is(watch, stands):
    stands[0].report("link to worker 2 broke: timed out", peer=2)
    with pytest.raises(WorkerFailedError, match="worker 0 failed during prefill: link to worker 2 broke: timed out"):
        watch.pump(0.0, "prefill")


def test_a_worker_that_reports_and_ends_has_failed_and_is_not_lost(watch, stands):
    stands[1].report("cannot import")
    stands[1].die(1)
    with pytest.raises(WorkerFailedError, match="cannot import"):
        watch.pump(0.0, "joining")


def test_a_mistake_of_the_user_stays_one(watch, stands):
    stands[1].report("the model has no weights", user=True)
    with pytest.raises(UserError, match="^the model has no weights$") as caught:
        watch.pump(0.0, "loading")
    assert caught.value.exit_code == 2


def test_garbage_names_its_sender(watch, stands):
    stands[1].socket.send(b"nonsense, long enough")
    with pytest.raises(WorkerFailedError, match="worker 1 failed during joining: it sent garbage"):
        watch.pump(0.0, "joining")


def test_silence_is_noticed_after_its_time(watch, stands, clock):
    clock.now_s += 3.5
    stands[0].far.send("beat")
    stands[2].far.send("beat")
    watch.pump(0.0, "decode")
    clock.now_s += 1.0
    with pytest.raises(WorkerSilentError, match=r"worker 1 went silent during decode: no heartbeat for 4\.\d s"):
        watch.pump(0.0, "decode")


def test_a_head_that_slept_blames_nobody_whose_beats_wait(watch, stands, clock):
    for stand in stands:
        stand.far.send("beat")
    clock.now_s += 1000.0
    watch.pump(0.0, "decode")
    assert all(worker.seen_s > 1000.0 for worker in watch.workers)


def test_a_worker_that_starts_may_be_silent_longer_unless_it_is_stopped(watch, stands, clock):
    for worker in watch.workers:
        worker.has_joined = False
    clock.now_s += 5.0
    watch.pump(0.0, "joining")
    stands[1].stopped = True
    with pytest.raises(WorkerSilentError, match="worker 1"):
        watch.pump(0.0, "joining")
    stands[1].stopped = False
    clock.now_s += STARTING_S
    with pytest.raises(WorkerSilentError, match="worker 0"):
        watch.pump(0.0, "joining")


def test_a_worker_that_takes_no_frames_is_lost_unless_it_has_said_why(watch, stands):
    stands[0].report("out of luck")
    with pytest.raises(WorkerFailedError, match="out of luck"):
        watch.blame_closed(1, "loading")


def test_a_worker_that_takes_no_frames_is_lost(watch):
    assert isinstance(watch.blame_closed(1, "loading"), WorkerLostError)
