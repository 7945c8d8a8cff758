"""Real runs over several hosts, which are network namespaces: right over any link, ended and named over none."""

import contextlib
import json
import os
import re
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import netns
from launched import TORCHRUN, Running, rank_of, torchrun
from netns import all_gone
from processes import PATIENCE_S
from product import tiny_llama

pytestmark = [pytest.mark.dist, pytest.mark.slow]

SCRIPT = str(Path(__file__).parent.parent / "hosts_script.py")
HEAD_S, GUEST_S, SLACK_S = 4.0, 6.0, 3.0  # docs/hosts.md; the slack is for a busy machine
NUM_NEW = 3


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


class Client:
    """Asks rank 0 for answers and compares them with one process's."""

    def __init__(self, toy, head: Running) -> None:
        self.toy, self.head = toy, head

    def ask(self, policy: str, num_tokens: int, chunk_tokens: int) -> None:
        self.case = self.toy.case(num_tokens, NUM_NEW)
        asked = {"ids": self.case.ids, "num_new": NUM_NEW, "policy": policy, "chunk_tokens": chunk_tokens}
        self.head.tell(json.dumps(asked))

    def wait_for_chunk(self, num_tokens: int) -> None:
        while json.loads(self.head.line())["done"] < num_tokens:
            pass

    def answer(self) -> dict[str, Any]:
        while "ids" not in (found := json.loads(self.head.line())):
            pass
        assert found["ids"] == self.case.reference.ids
        return found


def listening(pids: list[int]) -> set[tuple[str, str]]:
    """The name of each process that listens, and where."""
    return {
        (process.name(), connection.laddr.ip)
        for process in map(psutil.Process, pids)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }


def test_three_hosts_answer_as_one_process_over_links_of_any_speed(toy, needs_hosts):
    with netns.hosts(3, rate="1gbit") as hosts, torchrun(hosts, SCRIPT, str(toy.folder)) as running:
        client = Client(toy, running[0])
        for rate in ("1gbit", "100mbit"):
            for host in hosts:
                host.limit(rate)
            for policy in ("mars-paper", "ring"):
                client.ask(policy, 300, 96)
                client.answer()
        ours = {pid for host in hosts for pid in host.pids()} - {each.popen.pid for each in running}
        found = {address for name, address in listening(sorted(ours)) if name != "torchrun"}
        assert found <= {host.address for host in hosts}

        client.ask("gather", 900, 96)
        client.wait_for_chunk(96)
        for host in hosts:
            host.limit("10mbit")  # in the middle of a prefill
        client.answer()
        for host in hosts:
            host.limit("1mbit", burst_bytes=4096)
        client.ask("gather", 300, 96)
        found = client.answer()
        least_s = (found["bytes"]["new_kv"] / 3 - 2 * 4096) * 8 / 1e6  # each host sends about a third
        assert found["ttft_s"] > least_s > 0
        code, out, said = running[0].end()
        assert json.loads(out)["second"].startswith("this torchrun world has had its run")
        assert [code, *(each.end()[0] for each in running[1:])] == [0, 0, 0], said
        assert all_gone(hosts)


@pytest.mark.parametrize("cut", ["take_down", "unplug"])
def test_a_link_that_is_cut_in_prefill_ends_the_run_by_name_on_both_hosts(toy, needs_hosts, cut, tmp_path):
    (tmp_path / "prompt.txt").write_text("a long prompt of many chunks " * 200)
    options = ("--raw", "--prompt-file", str(tmp_path / "prompt.txt"), "--chunk-tokens", "64", "--policy", "gather")
    command = ("-m", "mcf", "run", str(toy.folder), *options)
    with netns.hosts(2, rate="2mbit") as hosts, torchrun(hosts, *command) as (head, guest):
        head.wait_for("prefill: ")
        getattr(hosts[1], cut)()
        cut_s = time.monotonic()
        head.wait_for("error: ")
        assert time.monotonic() - cut_s < HEAD_S + SLACK_S
        code, out, said = head.end()
        assert (code, out) == (1, "")
        assert "error: worker 1 on " in said
        assert "(10.0.0.2) went silent during prefill: no heartbeat for " in said
        guest.wait_for("error: ")
        assert time.monotonic() - cut_s < GUEST_S + SLACK_S
        code, out, said = guest.end()
        assert (code, out) == (1, "")
        assert "error: worker 1 lost the head: no heartbeat for 6." in said
        assert all_gone(hosts)


def test_a_rank_that_dies_on_rank_0s_own_host_is_named_by_rank_0_too(toy):
    """The launcher ends rank 0 by SIGTERM at once; it says its line all the same."""
    launcher = [TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    command = ("-m", "mcf", "run", str(toy.folder), "--prompt", "hello", "--max-tokens", "2")
    with Running([*launcher, *command], MCF_FAULT="kill:rank=1:phase=prefill") as running:
        code, out, said = running.end()
    assert (code, out) == (1, "")
    lines = [line for line in said.splitlines() if line.startswith(("error: ", "ended by "))]
    assert len(lines) == 1
    assert re.match(r"error: worker 1 on \S+ \(127.0.0.1\) was lost during prefill: its connection closed", lines[0])


def test_bench_runs_in_a_launchers_world_too(toy):
    port = free_port()
    bench = ("-m", "mcf", "bench", "prefill", str(toy.folder), "--prompt-tokens", "40", "--rounds", "1", "--json")
    with rank_of(0, 2, port, *bench, "--warmup", "0") as head, rank_of(1, 2, port, *bench, "--warmup", "0") as guest:
        (code, out, said), (other_code, nothing, other_said) = head.end(), guest.end()
    assert (code, other_code, nothing) == (0, 0, ""), said + other_said
    found = json.loads(out)
    assert found["settings"]["workers"] == len(found["memory"]) == 2


def test_strangers_at_the_control_port_do_not_disturb_a_run(toy):
    port = free_port()
    command = ("-m", "mcf", "run", str(toy.folder), "--prompt", "hello", "--max-tokens", "2", "--json")
    with contextlib.ExitStack() as stack:
        head = stack.enter_context(rank_of(0, 2, port, *command))
        control = control_port(head, port)
        address = ("127.0.0.1", control)
        http, noise, _ = (stack.enter_context(socket.create_connection(address, PATIENCE_S)) for _ in range(3))
        http.sendall(b"GET / HTTP/1.1\r\nHost: mcf\r\n\r\n")
        noise.sendall(bytes(range(256)))
        guest = stack.enter_context(rank_of(1, 2, port, *command))
        (code, out, said), (other_code, nothing, other_said) = head.end(), guest.end()
    assert (code, other_code, nothing) == (0, 0, ""), said + other_said
    assert json.loads(out)["workers"] == 2
    assert f"dropped 3 connections to the control port {control} that came from no worker of this run" in said


def free_port() -> int:
    """A free port of loopback below those that the system gives to whoever asks for any."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def control_port(head: Running, store_port: int) -> int:
    """Wait until the head lets workers in; return where. It listens on loopback alone."""
    process = psutil.Process(head.popen.pid)
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s and head.popen.poll() is None:
        found = [one.laddr for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        assert {address.ip for address in found} <= {"127.0.0.1"}
        if ports := {address.port for address in found} - {store_port}:
            return ports.pop()
        time.sleep(0.02)
    raise AssertionError(f"the head does not listen: {head.err}")
