"""What the head does with its workers, on workers without torch: quick to start, quick to kill."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from light_head import command
from mcf.dist.world import World, threads_per_worker
from mcf.errors import RunError, TransportError, UserError, WorkerFailedError, WorkerLostError, WorkerSilentError
from processes import children_of, is_alive, still_alive

pytestmark = pytest.mark.dist

HEAD = str(Path(__file__).parent.parent / "light_head.py")


def start(program: str = "light", num_workers: int = 2, **options) -> World:
    return World.start(num_workers, num_threads_per_worker=1, command=command(program), **options)


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert not still_alive({child.pid for child in psutil.Process().children()} - before)


@pytest.fixture
def world():
    with start() as world:
        yield world


def wait_until_stopped(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while psutil.Process(pid).status() != psutil.STATUS_STOPPED:
        os.sched_yield()


def test_workers_join_answer_and_leave(world):
    assert world.phase == "idle"
    for rank in (1, 0):
        world.send(rank, "ping", token=10 + rank)
    assert {rank: frame["token"] for rank, frame in world.wait_for("pong").items()} == {0: 10, 1: 11}
    world.close()
    world.close()
    assert world.is_closed
    assert [process.popen.returncode for process in world._processes] == [0, 0]


def test_frames_wait_for_who_wants_them(world):
    for token in (1, 2):
        world.send(1, "ping", token=token)
    assert world.wait_for("pong", [1])[1]["token"] == 1
    rank, frame = world.recv_any()
    assert (rank, frame["token"]) == (1, 2)
    assert world.recv_any(0.0) is None


def test_other_frames_go_to_the_listener_or_are_an_error(world):
    heard = []
    world.send(0, "ping", token=1)
    world.send(1, "ping", token=2)
    world.send(1, "join", port=1, timeout_s=1.0)
    found = world.wait_for("joined", [1], on_message=lambda rank, frame: heard.append((rank, frame["token"])))
    assert found.keys() == {1}
    assert heard == [(1, 2)]
    with pytest.raises(TransportError, match="worker 0 sent 'pong' during idle; expected 'joined'"):
        world.wait_for("joined", [0])
    assert world.is_closed


def test_workers_are_in_sessions_of_their_own_with_their_thread_counts(world):
    for pid in world.pids:
        assert os.getsid(pid) == pid
        assert psutil.Process(pid).environ()["OMP_NUM_THREADS"] == "1"


def test_a_worker_that_leaves_unasked_is_lost(world):
    world.phase = "loading"
    world.send(1, "shutdown")
    with pytest.raises(WorkerLostError, match="worker 1 was lost during loading: exit code 0"):
        world.wait_for("pong", [1])


def test_an_exception_in_a_worker_is_one_line_with_its_traceback_beside_it(world):
    world.phase = "loading"
    world.send(1, "hello", rank=1, pid=1, protocol=1, versions={})
    with pytest.raises(WorkerFailedError) as caught:
        world.wait_for("pong", [1])
    assert str(caught.value) == "worker 1 failed during loading: ValueError: no way to hello"
    assert "light_worker.py" in caught.value.__notes__[0]


def test_a_killed_worker_is_named_and_the_world_is_gone(world):
    world.phase = "prefill"
    os.kill(world.pids[1], signal.SIGKILL)
    with pytest.raises(WorkerLostError, match="worker 1 was lost during prefill: killed by SIGKILL") as caught:
        world.wait_for("pong")
    assert caught.value.rank == 1
    assert not still_alive(world.pids)
    with pytest.raises(RunError, match="the workers are gone: worker 1 was lost during prefill"):
        world.send(0, "ping", token=1)


def test_sending_to_a_killed_worker_names_it(world):
    os.kill(world.pids[1], signal.SIGKILL)
    world._processes[1].popen.wait()
    with pytest.raises(WorkerLostError, match="worker 1 was lost during idle: killed by SIGKILL"):
        world.send(1, "ping", token=1)


def test_check_notices_a_dead_worker_without_waiting(world):
    world.check()
    os.kill(world.pids[0], signal.SIGSEGV)
    world._processes[0].popen.wait()
    with pytest.raises(WorkerLostError, match="worker 0 was lost during idle: killed by SIGSEGV"):
        world.check()


def test_a_stopped_worker_is_silent_and_then_gone(world):
    world.phase = "decode"
    wait_until_stopped(world.pids[1])
    with pytest.raises(WorkerSilentError, match="worker 1 went silent during decode: no heartbeat for") as caught:
        world.wait_for("pong")
    assert caught.value.rank == 1
    assert not still_alive(world.pids)


def test_closing_ends_workers_that_hang_and_workers_that_are_stopped(world):
    world.broadcast("echo_state", num_floats=1)
    wait_until_stopped(world.pids[1])
    world.close()
    assert not still_alive(world.pids)


def test_closing_ends_a_worker_that_ignores_everything_else():
    world = start("deaf", 1)
    world.close()
    assert world._processes[0].popen.returncode == -signal.SIGKILL


def test_an_exception_in_the_head_kills_the_workers_at_once():
    with pytest.raises(KeyError, match="mine"), start() as world:
        raise KeyError("mine")
    assert [process.popen.returncode for process in world._processes] == [-signal.SIGKILL] * 2


def test_an_exception_in_a_listener_kills_the_workers(world):
    def listen(rank, frame):
        raise KeyboardInterrupt

    world.send(0, "ping", token=1)
    with pytest.raises(KeyboardInterrupt):
        world.wait_for("joined", [0], on_message=listen)
    assert world.is_closed


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        ("garbage", WorkerFailedError, r"worker 0 failed during joining: it sent garbage: .*starts with b'HTTP'"),
        ("stranger", TransportError, "worker 0 cannot join: its protocol is 2, the head's is 1"),
        ("impostor", TransportError, "worker 0 cannot join: its rank is 5, the head's is 0"),
        ("early", WorkerLostError, "worker 0 was lost during joining: exit code 7; its last line: the reason"),
    ],
)
def test_a_worker_that_does_not_fit_is_refused_at_joining(program, error, says):
    with pytest.raises(error, match=says):
        start(program, 1)


@pytest.mark.parametrize(("action", "why"), [("kill", "killed by SIGKILL"), ("exit", "exit code 3; .*asked for")])
@pytest.mark.parametrize("phase", ["start", "joining"])
def test_a_worker_lost_while_joining_is_named(action, why, phase):
    with pytest.raises(WorkerLostError, match=f"worker 1 was lost during joining: {why}"):
        start(fault=f"{action}:rank=1:phase={phase}")


def test_a_worker_stopped_while_joining_is_silent():
    with pytest.raises(WorkerSilentError, match="worker 1 went silent during joining"):
        start(fault="stop:rank=1:phase=joining", silent_s=1.0)


def test_an_error_while_joining_is_reported():
    with pytest.raises(WorkerFailedError, match="worker 0 failed during joining: RuntimeError: a fault asked for"):
        start(fault="raise:rank=0:phase=joining")


def test_a_bad_fault_is_refused_before_any_process_starts():
    with pytest.raises(UserError, match="MCF_FAULT has 'boom'"):
        start(fault="boom")


def head(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, HEAD, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def pids_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP])
def test_no_worker_outlives_a_head_that_is_ended_by(number):
    with head("light", "2", "hang") as process:
        pids = pids_of(process)
        assert len(pids) == 2
        process.send_signal(number)
        process.wait(30)
        assert not still_alive(pids)


@pytest.mark.parametrize("act", ["leave", "raise"])
def test_no_worker_outlives_a_head_that_ends_without_closing(act):
    with head("light", "2", act) as process:
        pids = pids_of(process)
        assert len(pids) == 2
        process.wait(30)
        assert not still_alive(pids)


def test_no_worker_outlives_a_world_that_is_dropped():
    with head("light", "2", "drop") as process:
        pids = pids_of(process)
        assert process.stdout.readline() == "dropped\n"
        assert not still_alive(pids)
        assert is_alive(process.pid)
        process.communicate("")


def test_ctrl_c_while_workers_start_leaves_none():
    with head("mute", "2", "hang") as process:
        pids = children_of(process.pid, 2)
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert not still_alive(pids)


def test_a_stopped_worker_does_not_outlive_a_killed_head():
    with head("light", "2", "hang") as process:
        pids = pids_of(process)
        wait_until_stopped(pids[1])
        process.kill()
        process.wait(30)
        assert not still_alive(pids)


def test_threads_are_shared_out():
    assert threads_per_worker(10_000) == 1
    assert threads_per_worker(1) >= 1
