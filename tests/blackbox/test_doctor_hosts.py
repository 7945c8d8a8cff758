"""`mcf doctor` over two hosts (network namespaces): the same command on both examines them before they join."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import check_json
from launched import PORT, Running
from netns import Host, all_gone, hosts, why_not

pytestmark = pytest.mark.dist


@pytest.fixture(autouse=True)
def _needs_hosts():
    if why := why_not():
        pytest.skip(why)


def doctors(made: list[Host], *args: list[str]) -> list[Running]:
    """Start rank r of a launcher's world on host r, each with arguments of its own."""
    place = {"WORLD_SIZE": str(len(made)), "MASTER_ADDR": made[0].address, "MASTER_PORT": str(PORT)}
    return [
        Running(host.inside(sys.executable, "-m", "mcf", "doctor", *own), RANK=str(host.index), **place)
        for host, own in zip(made, args, strict=True)
    ]


def changed(folder: Path, target: Path) -> Path:
    """A model of the same shape with other weights."""
    shutil.copytree(folder, target)
    weights = next(target.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-4096:] = bytes(4096)
    weights.write_bytes(data)
    return target


def test_another_model_and_another_mtu_are_found_before_anything_loads(toy, tmp_path):
    other = changed(toy, tmp_path / toy.name)
    with hosts(2) as made:
        subprocess.run(["ip", "-n", made[1].name, "link", "set", "eth0", "mtu", "1400"], check=True)
        first, second = [run.end() for run in doctors(made, [str(toy), "--json"], [str(other), "--json"])]
        assert all_gone(made)
    assert (first[0], second[:2]) == (1, (0, "")), first[2] + second[2]
    found = check_json(first[1], "doctor")
    assert [node["address"] for node in found["nodes"]] == [host.address for host in made]
    problems = [(each["check"], each["level"]) for each in found["findings"] if each["level"] != "ok"]
    assert ("model", "error") in problems
    assert ("network", "warning") in problems
    lines = " | ".join(f"{each['node']} {each['what']}" for each in found["findings"])
    assert "worker 1 on" in lines.split("its model is another one")[0].split("|")[-1]
    assert "eth0 has an MTU of 1500 bytes, another node 1400" in lines
    assert "all 2 ways between 2 workers are open" in lines


def test_a_model_that_one_host_lacks_is_a_line_not_a_crash(toy):
    with hosts(2) as made:
        first, second = [run.end() for run in doctors(made, [str(toy), "--json"], ["no/such/model.gguf", "--json"])]
        assert all_gone(made)
    assert (first[0], second[0]) == (1, 0), first[2] + second[2]
    (error,) = [each for each in json.loads(first[1])["findings"] if each["level"] == "error"]
    assert error["check"] == "model"
    assert error["node"].startswith("worker 1 on")
    assert "no/such/model.gguf" in error["what"]
