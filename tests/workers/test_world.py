"""Worlds of real workers: torch, Gloo and all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from mcf.dist.world import World
from mcf.errors import WorkerLostError, WorkerSilentError
from mcf.schedule.steps import STATE_BYTES
from processes import still_alive

pytestmark = [pytest.mark.dist, pytest.mark.slow]

CONTRACT_S = 5.0
HEAD = str(Path(__file__).parent.parent / "light_head.py")


@pytest.fixture(scope="module")
def world():
    with World.start(3, num_threads_per_worker=1) as world:
        yield world


def counters(world: World, num_floats: int) -> list[dict[tuple[int, int, int], int]]:
    world.broadcast("echo_state", num_floats=num_floats)
    found = world.wait_for("echoed")
    return [{tuple(key): num_bytes for *key, num_bytes in found[rank]["counters"]} for rank in range(world.num_workers)]


def test_workers_run_with_their_share_of_threads(world):
    world.broadcast("ping", token=1)
    assert {frame["num_threads"] for frame in world.wait_for("pong").values()} == {1}
    assert len({*world.pids, os.getpid()}) == 4


def test_states_are_exchanged_and_counted_at_both_ends(world):
    before, after = counters(world, 1), counters(world, 1000)
    for rank in range(3):
        links = [link for peer in range(3) if peer != rank for link in ((rank, peer), (peer, rank))]
        grown = {key: after[rank][key] - before[rank][key] for key in after[rank]}
        assert grown == {(*link, STATE_BYTES): 4000 for link in links}


def test_nothing_listens_beyond_loopback(world):
    listening = [
        connection.laddr.ip
        for pid in world.pids
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listening) >= 3
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_a_worker_killed_while_its_peer_waits_for_it_is_named():
    with World.start(2, num_threads_per_worker=1) as world:
        world.phase = "prefill"
        world.send(0, "echo_state", num_floats=1000)  # worker 1 is not told, so worker 0 waits inside Gloo
        begin_s = time.monotonic()
        os.kill(world.pids[1], signal.SIGKILL)
        with pytest.raises(WorkerLostError, match="worker 1 was lost during prefill: killed by SIGKILL") as caught:
            world.wait_for("echoed", [0])
        assert time.monotonic() - begin_s < CONTRACT_S
        assert caught.value.rank == 1
        assert not still_alive(world.pids)


def test_a_worker_that_dies_amid_an_exchange_of_three_is_named():
    with World.start(3, num_threads_per_worker=1, fault="kill:rank=2:phase=exchange:n=2") as world:
        counters(world, 10)
        with pytest.raises(WorkerLostError, match="worker 2 was lost during idle: killed by SIGKILL"):
            counters(world, 10)
        assert not still_alive(world.pids)


def test_a_worker_that_stops_amid_an_exchange_is_silent():
    with World.start(2, num_threads_per_worker=1, fault="stop:rank=1:phase=exchange") as world:
        begin_s = time.monotonic()
        with pytest.raises(WorkerSilentError, match="worker 1 went silent during idle"):
            counters(world, 10)
        assert time.monotonic() - begin_s < 2 * CONTRACT_S
        assert not still_alive(world.pids)


def test_a_worker_stuck_inside_gloo_does_not_outlive_the_head():
    command = [sys.executable, HEAD, "real", "2", "hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as head:
        pids = [int(pid) for pid in head.stdout.readline().split()]
        assert len(pids) == 2
        head.kill()
        head.wait()
        assert not still_alive(pids)
