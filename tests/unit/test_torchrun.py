"""A process's place in a launcher's world, by its variables; what is said where they cannot be."""

import json
import socket

import pytest

from command import mcf
from mcf.dist import interfaces, way
from mcf.dist.torchrun import place_from, settle_workers
from mcf.errors import UserError

WORLD = {
    "RANK": "1",
    "WORLD_SIZE": "3",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_torchruns_variables_make_a_place():
    place = place_from(WORLD)
    assert (place.rank, place.world_size, place.local_world_size) == (1, 3, 1)
    assert (place.master_addr, place.master_port, place.has_agent_store) == ("10.0.0.1", 29500, True)
    assert place.is_guest
    assert place.spans_hosts
    assert not place_from({**WORLD, "RANK": "0", "LOCAL_WORLD_SIZE": "3"}).spans_hosts


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_variable_that_is_missing_or_empty_makes_no_world(missing):
    assert place_from({name: text for name, text in WORLD.items() if name != missing}) is None
    assert place_from({**WORLD, missing: ""}) is None


@pytest.mark.parametrize(
    ("name", "text"),
    [("RANK", "3"), ("RANK", "-1"), ("WORLD_SIZE", "0"), ("MASTER_PORT", "70000"), ("LOCAL_WORLD_SIZE", "x")],
)
def test_values_that_cannot_be_are_refused_by_name(name, text):
    with pytest.raises(UserError, match=f"the variable {name} is '{text}': expected a number from"):
        place_from({**WORLD, name: text})


def test_the_number_of_workers_is_the_worlds():
    assert settle_workers(None, None) == 2
    assert settle_workers(5, None) == 5
    assert settle_workers(None, place_from(WORLD)) == 3
    assert settle_workers(3, place_from(WORLD)) == 3
    with pytest.raises(UserError, match="got 2 workers in a torchrun world of 3"):
        settle_workers(2, place_from(WORLD))


@pytest.mark.parametrize(
    "command", [("plan", "x", "--prompt-tokens", "8"), ("show", "x"), ("--version",), ("nonsense",)]
)
def test_other_commands_are_rank_0s_alone(command):
    done = mcf(*command, **WORLD)
    assert (done.code, done.out, done.err) == (0, "", "")


def test_rank_0_plans_for_the_whole_world(tmp_path):
    from mcf.testing import make_toy_model

    folder = make_toy_model(tmp_path / "toy", tokenizer=False)
    done = mcf("plan", str(folder), "--prompt-tokens", "64", "--json", **{**WORLD, "RANK": "0"})
    assert json.loads(done.out)["workers"] == 3, done.err


def test_wrong_workers_and_interfaces_are_one_line():
    done = mcf("run", "x", "--prompt", "x", "--workers", "2", **WORLD)
    assert (done.code, done.error.startswith("error: got 2 workers in a torchrun world of 3")) == (2, True)
    done = mcf("run", "x", "--prompt", "x", "--interface", "eth0")
    assert (done.code, done.error.startswith("error: got interface 'eth0' outside a torchrun world")) == (2, True)


# -- the way ---


@pytest.fixture
def two_cards(monkeypatch):
    found = [
        interfaces.Interface(name="lo", addresses=("127.0.0.1", "::1"), mtu_bytes=1, is_up=True, is_loopback=True),
        interfaces.Interface(name="eth0", addresses=("10.0.0.7",), mtu_bytes=1, is_up=True, is_loopback=False),
        interfaces.Interface(name="eth1", addresses=("fe80::1", "fd00::7"), mtu_bytes=1, is_up=True, is_loopback=False),
        interfaces.Interface(name="bare0", addresses=(), mtu_bytes=1, is_up=True, is_loopback=False),
    ]
    monkeypatch.setattr(way, "interfaces", lambda: found)
    monkeypatch.setattr(way, "source_address", {"10.0.0.1": "10.0.0.7", "10.9.9.9": ""}.__getitem__)
    monkeypatch.delenv(way.VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("host", "name", "address"),
    [("10.0.0.1", "eth0", "10.0.0.7"), ("10.0.0.7", "eth0", "10.0.0.7"), ("127.0.0.1", "lo", "127.0.0.1")],
)
def test_the_routing_table_chooses(two_cards, host, name, address):
    found = way.choose(host)
    assert (found.name, found.address, found.is_loopback) == (name, address, name == "lo")


def test_an_interface_that_is_named_wins(two_cards, monkeypatch):
    assert way.choose("10.0.0.1", named="eth1").address == "fd00::7"
    monkeypatch.setenv(way.VARIABLE, "eth1")
    assert way.choose("10.0.0.1").name == "eth1"
    with pytest.raises(UserError, match="no interface 'eth9' .*: expected one of lo, eth0, eth1"):
        way.choose("10.0.0.1", named="eth9")
    with pytest.raises(UserError, match="no interface 'bare0' with an address"):
        way.choose("10.0.0.1", named="bare0")


def test_a_host_without_an_address_or_a_way_is_refused(two_cards, monkeypatch):
    with pytest.raises(UserError, match="no way leads to MASTER_ADDR '10.9.9.9'"):
        way.choose("10.9.9.9")

    def nobody(*args, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(UserError, match="MASTER_ADDR 'hosta' has no address here"):
        way.choose("hosta")
