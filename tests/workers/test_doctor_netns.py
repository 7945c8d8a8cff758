"""A host with three cards whose name leads to 127.0.1.1: the doctor names the card that leads to the others."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from doctored import problems, spoil, survey
from mcf.engine.doctor import ERROR, WARNING
from netns import why_not

PREFIX = "mcfd"  # of names of namespaces and links
PEER = "10.214.1.2"
LOOK = f"import json; from mcf.dist import interfaces; print(json.dumps(interfaces.facts(['{PEER}'])))"


def _ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


@contextlib.contextmanager
def three_cards() -> Iterator[str]:
    """A namespace with a default route over one card, the peers' network on another, and a third."""
    name, host = f"{PREFIX}{os.getpid()}", os.uname().nodename
    etc = Path("/etc/netns") / name
    try:
        _ip("netns", "add", name)
        for card, address in (("internet", "10.214.0.1/24"), ("peers", "10.214.1.1/24"), ("docker", "172.31.0.1/24")):
            _ip("-n", name, "link", "add", card, "type", "veth", "peer", "name", f"{card}-far")
            _ip("-n", name, "link", "set", f"{card}-far", "up")
            _ip("-n", name, "addr", "add", address, "dev", card)
            _ip("-n", name, "link", "set", card, "mtu", "1400" if card == "peers" else "1500", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", "10.214.0.254", "dev", "internet")
        etc.mkdir(parents=True)
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host}\n")
        yield name
    finally:
        _ip("netns", "del", name, check=False)
        with contextlib.suppress(OSError):
            (etc / "hosts").unlink()
            etc.rmdir()


@pytest.mark.dist
def test_the_card_that_leads_to_the_others_is_named():
    if why := why_not():
        pytest.skip(why)
    with three_cards() as name:
        done = _ip("netns", "exec", name, sys.executable, "-c", LOOK)
    facts = json.loads(done.stdout)
    assert {each["name"] for each in facts["interfaces"]} >= {"lo", "internet", "peers", "docker"}
    assert facts["host_addresses"] == ["127.0.1.1"]
    assert facts["ways"] == {PEER: "10.214.1.1"}
    cards = {each["name"]: each for each in facts["interfaces"]}
    assert (cards["peers"]["mtu_bytes"], cards["peers"]["addresses"][0]) == (1400, "10.214.1.1")

    found = spoil(survey(), 0, **{key: facts[key] for key in ("host_addresses", "interfaces")})
    found.nodes[0].facts["ways"].clear()
    found = spoil(found, 0, ways=facts["ways"], address="127.0.1.1")  # what a look-up of its name gives
    (wrong,) = [each for each in problems(found) if each.level == ERROR]
    assert "10.214.1.1 (peers)" in wrong.do
    lines = problems(replace(found, nodes=[replace(found.nodes[0], address="10.214.1.1"), *found.nodes[1:]]))
    assert [each.level for each in lines] == [WARNING, WARNING]  # the trap in the name, and the smaller MTU
    assert "resolves to 127.0.1.1" in lines[0].what
    wifi = problems(replace(found, nodes=[replace(found.nodes[0], address="10.214.0.1"), *found.nodes[1:]]))
    assert any("from 10.214.1.1 (peers)" in each.what for each in wifi)
