"""Workers forked by a nursery are as good as workers that are programs of their own."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from light_head import command
from mcf.dist.nursery import ForkedProcess, Nursery
from mcf.dist.process import WorkerProcess, worker_environment
from mcf.dist.world import World
from mcf.errors import WorkerFailedError, WorkerLostError
from processes import is_alive, still_alive

pytestmark = pytest.mark.dist


@pytest.fixture(scope="module")
def own():
    """A nursery without what is heavy: its workers cannot join, and start at once."""
    nursery = Nursery.start(modules=())
    assert nursery.is_ready()
    yield nursery
    nursery.close()


def start(nursery: Nursery, num_workers: int = 2, **options) -> World:
    return World.start(num_workers, num_threads_per_worker=1, nursery=nursery, **options)


def greet(nursery: Nursery, **options) -> World:
    """A world whose workers have said hello and no more."""
    return start(nursery, is_joined=False, **options)


def test_they_are_forked_in_sessions_with_environments_of_their_own(own):
    with greet(own, env={"MCF_TEST": "yes"}) as world:
        world.broadcast("join", port=1, timeout_s=0.1)
        assert len({*world.pids, os.getpid()}) == 3
        for process in world._processes:
            assert isinstance(process.popen, ForkedProcess)
            assert os.getsid(process.pid) == process.pid
            assert psutil.Process(process.pid).ppid() == own._process.pid


def test_they_leave_politely_and_are_reaped(own):
    world = greet(own)
    world.close()
    assert [process.popen.returncode for process in world._processes] == [0, 0]
    assert not psutil.Process(own._process.pid).children()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_one_is_named(own, number):
    with greet(own) as world:
        os.kill(world.pids[1], number)
        with pytest.raises(WorkerLostError, match=f"worker 1 was lost during joining: killed by {number.name}"):
            world.wait_for("joined")
        assert not still_alive(world.pids)


@pytest.mark.parametrize(
    ("fault", "error", "says"),
    [
        ("exit:rank=1:phase=start", WorkerLostError, "exit code 3; its last line: exit asked for by MCF_FAULT"),
        ("raise:rank=1:phase=start", WorkerLostError, "exit code 1; its last line: RuntimeError: a fault asked for"),
        ("raise:rank=1:phase=joining", WorkerFailedError, "RuntimeError: a fault asked for by MCF_FAULT"),
    ],
)
def test_their_last_words_are_heard(own, fault, error, says):
    with pytest.raises(error, match=f"worker 1 .* during joining: {says}"):
        start(own, fault=fault)


def test_nothing_is_left_open_in_the_head_or_in_the_nursery(own):
    greet(own).close()
    here, there = (len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", own._process.pid))
    for _ in range(3):
        greet(own).close()
    assert [len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", own._process.pid)] == [here, there]


def test_they_do_not_outlive_the_nursery():
    nursery = Nursery.start(modules=())
    with greet(nursery) as world:
        nursery._process.kill()
        with pytest.raises(WorkerLostError, match="killed by SIGKILL"):
            world.wait_for("joined")
        assert not still_alive(world.pids)
    assert nursery.is_gone()
    assert not nursery.is_ready()
    nursery.close()


def test_a_nursery_that_cannot_import_is_not_used():
    nursery = Nursery.start(modules=("no_such_module",))
    assert not nursery.is_ready()
    with World.start(1, num_threads_per_worker=1, nursery=nursery, command=command("light")) as world:
        assert isinstance(world._processes[0].popen, subprocess.Popen)
    nursery.close()


def test_a_nursery_with_threads_is_not_used(own, monkeypatch):
    monkeypatch.setattr(own, "_num_threads", 2)
    with World.start(1, num_threads_per_worker=1, nursery=own, command=command("light")) as world:
        assert isinstance(world._processes[0], WorkerProcess)
        assert isinstance(world._processes[0].popen, subprocess.Popen)


def test_a_nursery_whose_head_is_gone_before_it_looks_leaves_at_once():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    command = [sys.executable, "-P", "-m", "mcf.dist.nursery", "0", str(gone.pid), "a_module_that_does_not_exist"]
    done = subprocess.run(command, env=worker_environment(1, {}), timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


def test_they_do_not_outlive_a_head_that_is_killed():
    code = (
        "from mcf.dist.nursery import Nursery; from mcf.dist.world import World; import sys\n"
        "nursery = Nursery.start(modules=())\n"
        "world = World.start(2, num_threads_per_worker=1, nursery=nursery, is_joined=False)\n"
        "print(nursery._process.pid, *world.pids, flush=True)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as head:
        pids = [int(pid) for pid in head.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        os.kill(pids[1], signal.SIGSTOP)
        head.kill()
        head.wait()
        assert not still_alive(pids)
