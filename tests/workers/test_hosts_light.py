"""A head with workers of other hosts, all without torch and on loopback: who is blamed, and that everybody ends."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import psutil
import pytest

from light_guest import Store
from light_head import command
from mcf.dist import hosts, remote
from mcf.dist.guest import HEAD_SILENT_S
from mcf.dist.hosts import Hosts
from mcf.dist.torchrun import Place
from mcf.dist.way import Way
from mcf.dist.witness import Witness
from mcf.dist.world import SILENT_S, World
from mcf.errors import RunError, TransportError, UserError, WorkerLostError, WorkerSilentError
from processes import PATIENCE_S, still_alive

pytestmark = pytest.mark.dist

GUEST = str(Path(__file__).parent.parent / "light_guest.py")
SLACK_S = 3.0  # of a busy machine


class Party:
    """A head on its way, and its guests, processes of their own."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.guests: list[subprocess.Popen[str]] = []
        self.store = Store("")
        fingerprint: Future[str] = Future()
        fingerprint.set_result("f1")
        place = Place(rank=0, world_size=3, local_world_size=1, master_addr="127.0.0.1", master_port=1)
        way = Way(name="lo", address="127.0.0.1")
        self.hosts = Hosts(place, way, self.store, dtype="float32", fingerprint=fingerprint, say=self.said.append)

    def invite(self, rank: int, *options: str, **env: str) -> subprocess.Popen[str]:
        """Start one guest."""
        arguments = [sys.executable, GUEST, self.store.posts["head"], str(rank), *options]
        guest = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env={**os.environ, **env})
        self.guests.append(guest)
        return guest

    def start(self) -> World:
        """Start the head's side."""
        return World.start(3, num_threads_per_worker=1, command=command("light"), hosts=self.hosts)

    def end_of(self, guest: subprocess.Popen[str]) -> tuple[int, str]:
        """Wait for a guest's own end; return its exit code and what it said."""
        said = guest.communicate(timeout=PATIENCE_S)[1]
        return guest.returncode, said.strip()

    def close(self) -> None:
        """Give everything back."""
        self.hosts.close()
        for guest in self.guests:
            guest.kill()
            guest.communicate()


@pytest.fixture
def party():
    before = {child.pid for child in psutil.Process().children()}
    party = Party()
    yield party
    party.close()
    assert not still_alive({child.pid for child in psutil.Process().children()} - before)


@pytest.fixture
def whole(party):
    """A world with two guests."""
    party.invite(2)
    party.invite(1)
    with party.start() as world:
        yield world


def test_guests_join_answer_and_leave(party, whole):
    whole.broadcast("ping", token=7)
    assert {rank: frame["token"] for rank, frame in whole.wait_for("pong").items()} == {0: 7, 1: 7, 2: 7}
    assert set(whole.pids[1:]) == {guest.pid for guest in party.guests}
    whole.close()
    assert [party.end_of(guest) for guest in party.guests] == [(0, ""), (0, "")]
    assert party.said == []


def test_nothing_listens_once_all_have_joined(party, whole):
    listening = [c.laddr.port for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert party.hosts.lobby.port not in listening


def test_a_guest_that_is_killed_is_named_and_the_other_is_told(party, whole):
    whole.phase = "prefill"
    two, one = party.guests
    begin_s = time.monotonic()
    one.kill()
    with pytest.raises(
        WorkerLostError, match=r"^worker 1 on \S+ \(127.0.0.1\) was lost during prefill: its connection"
    ):
        whole.wait_for("pong")
    assert time.monotonic() - begin_s < 1 + SLACK_S
    code, said = party.end_of(two)
    assert code == 1
    assert said.startswith("error: worker 2 lost the head: it ended the run: worker 1 on ")


def test_a_guest_that_is_stopped_is_silent_and_ends_itself_when_it_wakes_up(party, whole):
    _, one = party.guests
    one.send_signal(signal.SIGSTOP)
    begin_s = time.monotonic()
    with pytest.raises(WorkerSilentError, match=r"worker 1 on .* went silent during idle: no heartbeat for "):
        whole.wait_for("pong")
    assert SILENT_S <= time.monotonic() - begin_s < SILENT_S + SLACK_S
    one.send_signal(signal.SIGCONT)
    code, said = party.end_of(one)
    assert (code, said.startswith("error: worker 1 lost the head: it ended the run: worker 1")) == (1, True)


def test_a_guest_stuck_in_a_wait_ends_too(party, whole):
    whole.send(1, "echo_state", num_floats=1)  # its main thread hangs
    whole.kill("they were tested")
    assert [party.end_of(guest)[0] for guest in party.guests] == [1, 1]


def test_a_silent_head_is_noticed(party, whole, monkeypatch):
    monkeypatch.setattr(remote.RemoteWorker, "cut", lambda self, why: None)
    for worker in whole._processes[1:]:
        worker._beat.stop()
    begin_s = time.monotonic()
    ends = [party.end_of(guest) for guest in party.guests]
    assert HEAD_SILENT_S - 1 < time.monotonic() - begin_s < HEAD_SILENT_S + SLACK_S
    assert [code for code, _ in ends] == [1, 1]
    assert ends[0][1].startswith("error: worker 2 lost the head: no heartbeat for 6.")


def test_a_head_that_closes_without_a_shutdown_is_lost(party, whole):
    for worker in whole._processes[1:]:
        worker.channel.close()
    whole.kill()
    code, said = party.end_of(party.guests[0])
    assert (code, said) == (
        1,
        "error: worker 2 lost the head: its connection closed without a shutdown: it ended or was killed",
    )


@pytest.mark.parametrize(
    ("options", "env", "says"),
    [
        (
            ("f2",),
            {},
            "worker 1 on .* cannot join: its model has the fingerprint f2, the head's f1; put the same model",
        ),
        (("f1", "bfloat16"), {}, "worker 1 on .* cannot join: its dtype is bfloat16, the head's is float32; install"),
        ((), {"PYTHONPATH": "other"}, "worker 1 on .* cannot join: its transformers is 4.0, the head's is 5"),
    ],
)
def test_another_model_dtype_or_version_is_refused_at_joining(party, tmp_path, options, env, says):
    if env:
        (tmp_path / "transformers-4.0.dist-info").mkdir()
        (tmp_path / "transformers-4.0.dist-info" / "METADATA").write_text("Name: transformers\nVersion: 4.0\n")
        env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    one, two = party.invite(1, *options, **env), party.invite(2)
    with pytest.raises(TransportError, match=says):
        party.start()
    for guest in (one, two):
        code, said = party.end_of(guest)
        assert code == 1
        assert "it ended the run: worker 1 on" in said


def test_a_guest_that_cannot_read_its_model_says_so_on_both_sides(party):
    one, two = party.invite(1, "broken"), party.invite(2)
    with pytest.raises(UserError, match=r"^worker 1 on \S+: this host's model is broken$|^worker 1 on .*broken"):
        party.start()
    assert party.end_of(one) == (2, "error: this host's model is broken")
    assert party.end_of(two)[0] == 1


@pytest.mark.parametrize("point", ["start", "joining", "shutdown"])
def test_faults_of_guests(party, point):
    one, two = party.invite(1, MCF_FAULT=f"kill:rank=1:phase={point}"), party.invite(2)
    if point == "start":  # before it connects: only time tells
        party.hosts._start_s -= hosts.JOIN_S
        with pytest.raises(TransportError, match=r"workers 1(, 2)? of 3 did not join within 120 s"):
            party.start()
        assert one.wait(PATIENCE_S) == -signal.SIGKILL
        return
    if point == "joining":
        with pytest.raises(WorkerLostError, match="worker 1 on .* was lost during joining"):
            party.start()
        assert party.end_of(two)[0] == 1
    else:
        party.start().close()
        assert party.end_of(two)[0] == 0
    assert party.end_of(one)[0] == -signal.SIGKILL


def test_a_guest_that_cannot_reach_the_head_tells_it_through_the_store(party):
    party.store.post("failed/2", "it cannot reach the head's control port")
    party.invite(1)
    with pytest.raises(RunError, match="worker 2 could not join: it cannot reach the head's control port"):
        party.start()


def test_a_closed_door_is_one_clear_line(party):
    party.hosts.close()
    code, said = party.end_of(party.invite(1))
    assert code == 1
    assert said.startswith(f"error: worker 1 cannot reach the head's control port 127.0.0.1:{party.hosts.lobby.port} (")


def test_a_head_that_takes_no_part_says_why(party):
    party.store.post("head", json.dumps({"refused": "the prompt is empty"}))
    assert party.end_of(party.invite(1)) == (1, "error: the head cannot take part: the prompt is empty")


@pytest.mark.parametrize("is_dismissed", [True, False])
def test_a_witness_leaves_when_it_is_dismissed_and_where_there_is_no_store(monkeypatch, is_dismissed):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    one = Witness()
    if is_dismissed:
        one.dismiss()
    else:
        os.close(one._write_end)  # as the end of the process does
    assert one._popen.wait(PATIENCE_S) == 0


# -- Debian's 127.0.1.1 ---


LOOPBACK = Way(name="lo", address="127.0.1.1")
TRAP = Place(rank=0, world_size=2, local_world_size=1, master_addr="hosta", master_port=1)


def test_a_loopback_master_address_is_refused_where_there_are_other_hosts():
    store = Store("")
    store.post("host/1", "another machine")
    with pytest.raises(
        UserError, match=r"MASTER_ADDR 'hosta' is the loopback address 127.0.1.1 on its own host"
    ) as caught:
        hosts.check_address(TRAP, LOOPBACK, store)
    assert "give torchrun --master-addr one of this host's addresses (" in str(caught.value)
    assert json.loads(store.posts["head"])["refused"] == str(caught.value)


@pytest.mark.parametrize(
    ("way", "place"),
    [
        (Way(name="lo", address="127.0.1.1", is_asked=True), TRAP),
        (Way(name="eth0", address="10.0.0.1"), TRAP),
        (LOOPBACK, Place(rank=0, world_size=2, local_world_size=2, master_addr="localhost", master_port=1)),
    ],
)
def test_an_address_that_is_asked_for_or_reached_is_not_refused(way, place):
    hosts.check_address(place, way, Store(""))


def test_two_launchers_on_one_machine_may_meet_on_loopback():
    store = Store("")
    store.post("host/1", hosts.host_identity())
    hosts.check_address(TRAP, LOOPBACK, store)
    assert store.posts["head"] == ""


def test_a_world_has_one_run(monkeypatch):
    monkeypatch.setattr(hosts, "_was_used", True)
    with pytest.raises(RunError, match="this torchrun world has had its run and its workers have left"):
        hosts.arrive(TRAP, None)
