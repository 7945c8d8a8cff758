"""The doctor's checks on made-up nodes: a healthy survey has nothing but `ok`; one fault is one line that names it."""

import re
import tomllib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doctored import GIB, NEEDS, VERSIONS, nic, only, problems, spoil, survey
from mcf.engine.doctor import ERROR, OK, WARNING, Clock, check_all, has_error
from mcf.engine.doctor.agreement import MOST_OFFSET_S, SUPPORTED, unsupported
from pages import ROOT

RANKS = st.integers(0, 3)


@pytest.mark.parametrize("num_nodes", [1, 2, 4])
@pytest.mark.parametrize("one_machine", [False, True])
def test_healthy_nodes_have_one_ok_line_for_each_check(num_nodes, one_machine):
    findings = check_all(survey(num_nodes, one_machine=one_machine, needs=replace(NEEDS, kv_bytes=None)))
    names = ["versions", "network", "ports", "clocks", "memory", "cores", "disk", "files", "model"]
    assert [(each.check, each.level) for each in findings] == [(name, OK) for name in names]
    assert not has_error(findings)


def test_without_a_model_nothing_is_said_about_one():
    found = spoil(spoil(survey(), 0, fingerprint=""), 1, fingerprint="")
    assert "model" not in {each.check for each in check_all(found)}


@given(st.integers(1, 3), st.sampled_from(sorted(VERSIONS)), st.sampled_from(["none", "1.0", "99.1.0"]))
def test_another_version_than_worker_0_is_an_error(rank, name, version):
    problem = only(spoil(survey(4), rank, versions={**VERSIONS, name: version}))
    assert (problem.check, problem.level) == ("versions", ERROR)
    assert problem.node == f"worker {rank} on host{rank}"
    assert f"{name} is {version}" in problem.what
    assert VERSIONS[name] in problem.do


def test_a_version_that_nobody_tested_is_an_error_once():
    old = {**VERSIONS, "torch": "2.12.1"}
    problem = only(spoil(spoil(survey(), 0, versions=old), 1, versions=old))
    assert (problem.check, problem.what) == ("versions", "torch is 2.12.1: expected >=2.13,<2.14")
    assert "none" in only(spoil(survey(1), 0, versions={**VERSIONS, "torch": "none"})).what


def test_the_supported_versions_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["dist"],
        f"python{project['requires-python']}",
    ]
    for name, (least, _) in SUPPORTED.items():
        (text,) = [each for each in wanted if re.match(rf"{name}\b", each)]
        numbers = tuple(map(int, re.findall(r"\d+", text)[:2]))
        assert (numbers + (0,))[:2] == least
        assert not unsupported(name, VERSIONS[name])


def test_an_address_on_loopback_is_an_error_that_names_the_right_interface():
    found = spoil(survey(), 1, address="127.0.1.1", cannot_reach={})
    errors = [each for each in problems(found) if each.level == ERROR]
    assert [each.check for each in errors] == ["network"]
    assert "10.0.0.2 (eth0)" in errors[0].do


def test_a_host_name_that_means_loopback_is_a_warning():
    problem = only(spoil(survey(), 0, host_addresses=["127.0.1.1"]))
    assert (problem.check, problem.level) == ("network", WARNING)
    assert "host0 resolves to 127.0.1.1" in problem.what
    assert "10.0.0.1" in problem.do


def test_workers_of_one_machine_may_use_loopback():
    found = replace(survey(one_machine=True), is_local=True)
    for rank in (0, 1):
        found = spoil(found, rank, address="127.0.0.1", host_addresses=["127.0.1.1"], ways={"127.0.0.1": "127.0.0.1"})
    assert problems(found) == []


def test_several_cards_and_the_wrong_one():
    cards = [nic("lo", "127.0.0.1"), nic("wifi", "192.168.1.5"), nic("fast", "10.0.0.2"), nic("docker0", "172.17.0.1")]
    found = spoil(survey(), 1, interfaces=cards, address="192.168.1.5")
    assert "from 10.0.0.2 (fast)" in only(found).what
    assert problems(spoil(survey(), 1, interfaces=cards)) == []


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ways": {"10.0.0.1": ""}}, "no way leads to 10.0.0.1"),
        ({"interfaces": [nic("eth0", "10.0.0.2", up=False)]}, "eth0 is down"),
        ({"interfaces": [nic("eth0", "10.0.0.77")]}, "no interface of it has the address 10.0.0.2"),
    ],
)
def test_an_interface_that_leads_nowhere_is_an_error(changes, says):
    old = survey()
    old.nodes[1].facts["ways"].clear()
    problem = only(spoil(old, 1, **changes))
    assert (problem.level, problem.what) == (ERROR, says)


@given(st.lists(st.sampled_from([1400, 1500, 9000]), min_size=2, max_size=4))
def test_unequal_mtus_are_named_where_they_are_larger(sizes):
    found = survey(len(sizes))
    for rank, size in enumerate(sizes):
        found = spoil(found, rank, interfaces=[nic("eth0", f"10.0.0.{rank + 1}", mtu=size)])
    named = {int(each.node.split()[1]) for each in problems(found)}
    assert named == {rank for rank, size in enumerate(sizes) if size > min(sizes)}


def test_ports_that_do_not_open():
    problem = only(spoil(survey(), 0, cannot_reach={1: "timed out"}))
    assert (problem.check, problem.level) == ("ports", ERROR)
    assert "cannot connect to worker 1 at 10.0.0.2: timed out" in problem.what
    problem = only(spoil(survey(), 1, cannot_listen="cannot assign requested address"))
    assert problem.node == "worker 1 on host1"


@given(st.floats(-10, 10), st.floats(1e-5, 1.0))
def test_clocks_are_judged_as_exactly_as_a_round_trip_allows(offset_s, trip_s):
    clock = Clock(offset_s=offset_s, round_trip_s=trip_s, is_monotone=True)
    found = problems(spoil(survey(), 1, clock=clock))
    assert [each.level for each in found] == [WARNING] * (abs(offset_s) - trip_s / 2 > MOST_OFFSET_S)


def test_a_clock_that_runs_backwards_is_an_error():
    clock = Clock(offset_s=0.0, round_trip_s=1e-4, is_monotone=False)
    assert only(spoil(survey(), 1, clock=clock)).level == ERROR


@given(st.integers(0, 8 * GIB), st.integers(0, 8 * GIB), st.integers(0, 16 * GIB), st.integers(1, 4))
def test_memory_is_shared_by_the_workers_of_a_machine(weights, kv, free, num_nodes):
    needs = replace(NEEDS, weight_bytes=weights, kv_bytes=kv)
    found = survey(num_nodes, one_machine=True, needs=needs)
    for rank in range(num_nodes):
        found = spoil(found, rank, memory={"available_bytes": free}, cpu={"threads": 1})
    levels = [each.level for each in problems(found)]
    room, need = free // num_nodes, weights + kv + GIB
    assert levels == ([ERROR] if room < need else [WARNING] if room < need * 1.1 else [])


def test_a_control_group_is_tighter_than_the_machine():
    found = spoil(survey(needs=NEEDS), 1, memory={"group_left_bytes": GIB, "group_limit_bytes": 2 * GIB})
    problem = only(found)
    assert (problem.level, problem.node) == (ERROR, "worker 1 on host1")
    assert "1 GiB of its control group's limit" in problem.what
    assert "weights 2 GiB" in problem.what


@pytest.mark.parametrize(
    ("changes", "level", "says"),
    [
        ({"memory": {"swap_used_bytes": GIB}}, WARNING, "swapped out"),
        ({"memory": {"process_limit_bytes": 1000}}, ERROR, "may map"),
        ({"cpu": {"load": 7.0}}, WARNING, "load of 7.0 on 8 cores"),
        ({"cpu": {"governor": "powersave"}}, WARNING, "governor is powersave"),
        ({"cpu": {"threads": 9}}, WARNING, "9 threads of 1 workers on 8 cores"),
        ({"disk": {"free_bytes": 1000}}, WARNING, "free at /cache"),
        ({"disk": {"is_writable": False}}, WARNING, "cannot be written"),
        ({"open_files": 64}, ERROR, "may open 64 files"),
        ({"fingerprint": "e" * 64}, ERROR, "its model is another one"),
        ({"fingerprint": "none: no such folder"}, ERROR, "cannot be read there (no such folder)"),
    ],
)
def test_one_fault_is_one_line(changes, level, says):
    problem = only(spoil(survey(), 1, **changes))
    assert problem.level == level
    assert says in problem.what
    assert problem.node == "worker 1 on host1"


def test_unequal_machines_are_named():
    found = spoil(survey(), 0, cpu={"allowed_cores": 16})
    found = spoil(found, 1, cpu={"quota_cores": 4.0})
    assert "4 cores for each worker, others have 16" in only(found).what


def test_bfloat16_without_its_instructions_is_a_warning():
    needs = replace(NEEDS, dtype="bfloat16")
    assert problems(survey(needs=needs)) == []
    assert "bfloat16" in only(spoil(survey(needs=needs), 1, cpu={"flags": ["avx2"]})).what
