"""The doctor's visit from end to end, on workers without torch: it looks before anything heavy is imported."""

import math
import socket
import threading

import psutil
import pytest

from light_head import command
from mcf.dist.control import Frame
from mcf.dist.examine import Examiner
from mcf.dist.world import World
from mcf.engine.doctor import OK
from mcf.engine.doctor.visit import visit
from mcf.errors import TransportError
from processes import PATIENCE_S, still_alive
from simulated import tiny_shape

pytestmark = pytest.mark.dist


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert not still_alive({child.pid for child in psutil.Process().children()} - before)


def test_local_workers_are_found_in_order():
    found = visit(None, workers=2, command=command("light"))
    by_check = {each.check: each for each in found.findings if each.check not in ("memory", "cores")}
    assert {each.level for each in by_check.values()} == {OK}, (
        "memory and load depend on the machine, the rest must not"
    )
    assert by_check["ports"].what == "all 2 ways between 2 workers are open"
    first, second = found.survey.nodes
    assert first.facts["pid"] != second.facts["pid"]
    assert first.facts["machine"] == second.facts["machine"]
    assert abs(first.clock.offset_s) < 10.0
    assert first.clock.is_monotone
    assert (first.cannot_reach, second.cannot_reach) == ({1: ""}, {0: ""})


def test_an_examined_world_can_still_join_and_work():
    with World.start(2, num_threads_per_worker=1, command=command("light"), is_joined=False) as world:
        assert world.phase == "joining"
        world.broadcast("clock")
        assert all(frame["wall_s"] > 0 for frame in world.wait_for("clocked").values())
        world.join()
        assert world.phase == "idle"
        world.send(1, "ping", token=3)
        assert world.wait_for("pong", [1])[1]["token"] == 3


def test_a_stranger_is_refused_when_the_world_joins():
    with pytest.raises(TransportError, match="protocol"):
        World.start(1, num_threads_per_worker=1, command=command("stranger"), is_joined=False).join()


def ask(examiner: Examiner, type: str, **fields) -> dict:
    answers = []
    examiner.handle(Frame(type=type, fields=fields), lambda type, **reply: answers.append(reply))
    return answers[0]


def test_ports_are_tried_and_closed_again():
    one, other = Examiner(), Examiner()
    port = ask(one, "listen", address="127.0.0.1", token="right")["port"]
    assert ask(other, "reach", targets=[[0, "127.0.0.1", port]], token="right")["results"][0][:2] == [0, ""]
    wrong = ask(other, "reach", targets=[[0, "127.0.0.1", port]], token="wrong")["results"][0][1]
    assert wrong == "another program answers there"
    ask(one, "unlisten")
    assert "refused" in ask(other, "reach", targets=[[0, "127.0.0.1", port]], token="right")["results"][0][1].lower()
    for thread in [each for each in threading.enumerate() if each.name == "mcf-port"]:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_an_address_that_is_not_here_cannot_be_listened_on():
    found = ask(Examiner(), "listen", address="192.0.2.77", token="x")
    assert found["port"] == 0
    assert found["why"]


def test_a_port_that_says_nothing_is_not_taken_for_one_of_ours():
    with socket.create_server(("127.0.0.1", 0)) as mute:
        threading.Thread(target=lambda: mute.accept()[0].close(), daemon=True).start()
        target = [0, "127.0.0.1", mute.getsockname()[1]]
        assert ask(Examiner(), "reach", targets=[target], token="x")["results"][0][1]


def test_real_workers_measure_all_at_once(monkeypatch):
    sizes = dict(SECONDS=0.01, STREAM_BYTES=1 << 20, PAST_TOKENS=64, PROBE_BYTES=1 << 12, MOST_BYTES=1 << 16)
    for name, value in sizes.items():
        monkeypatch.setattr(f"mcf.engine.doctor.measure.{name}", value)
    monkeypatch.setattr("mcf.engine.doctor.measure.USUAL", tiny_shape())
    measured = visit(None, workers=2, is_measuring=True).measured
    assert measured is not None
    assert set(measured.link_bytes_s) == {(0, 1), (1, 0)}
    numbers = [*measured.link_bytes_s.values(), *measured.link_latency_s.values(), *measured.port_bytes_s]
    numbers += [value for rates in measured.rates for value in rates.values()]
    assert all(0 < value < math.inf for value in numbers)
    assert measured.sizes["hidden"] == tiny_shape().hidden_size


def test_nodes_with_an_error_are_not_measured(monkeypatch):
    monkeypatch.setattr("mcf.engine.doctor.machine.FILES_BARE", 1 << 40)
    found = visit(None, workers=2, is_measuring=True, command=command("light"))
    assert not found.is_well
    assert found.measured is None
