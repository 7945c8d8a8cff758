"""Healthy reports of made-up nodes, for tests of the doctor's checks: each test spoils what it is about."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcf.engine.doctor import ERROR, OK, WARNING, Clock, Finding, Needs, NodeReport, Survey, check_all

GIB = 1 << 30
VERSIONS = {"python": "3.11.7", "mcf": "0.1.0", "numpy": "2.4.6", "torch": "2.13.0+cpu", "transformers": "5.24.0"}
NEEDS = Needs(weight_bytes=2 * GIB, buffer_bytes=GIB, kv_bytes=GIB, kv_token_bytes=1 << 10, dtype="float32")


def nic(name: str, *addresses: str, mtu: int = 1500, up: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "addresses": list(addresses),
        "mtu_bytes": mtu,
        "is_up": up,
        "is_loopback": name == "lo",
    }


def facts(rank: int, machine: int) -> dict[str, Any]:
    address = f"10.0.0.{rank + 1}"
    return {
        "host": f"host{machine}",
        "host_addresses": [address],
        "interfaces": [nic("lo", "127.0.0.1"), nic("eth0", address)],
        "ways": {},
        "machine": f"boot-{machine}",
        "system": "Linux 6.1 x86_64",
        "memory": {
            "total_bytes": 16 * GIB,
            "available_bytes": 15 * GIB,
            "swap_used_bytes": 0,
            "group_limit_bytes": None,
            "group_left_bytes": None,
            "process_limit_bytes": None,
        },
        "cpu": {
            "model": "made up",
            "cores": 8,
            "allowed_cores": 8,
            "quota_cores": None,
            "flags": ["avx2", "avx512f", "avx512_bf16"],
            "governor": "performance",
            "load": 0.1,
            "threads": 2,
        },
        "disk": {"path": "/cache", "free_bytes": 100 * GIB, "is_writable": True},
        "open_files": 4096,
        "fingerprint": "f" * 64,
    }


def node(rank: int, *, num_nodes: int = 2, machine: int | None = None) -> NodeReport:
    """A healthy node: on a machine of its own unless `machine` says which."""
    found = facts(rank, rank if machine is None else machine)
    others = [other for other in range(num_nodes) if other != rank]
    found["ways"] = {f"10.0.0.{other + 1}": f"10.0.0.{rank + 1}" for other in others}
    return NodeReport(
        rank=rank,
        versions=dict(VERSIONS),
        facts=found,
        address=f"10.0.0.{rank + 1}",
        clock=Clock(offset_s=1e-4, round_trip_s=3e-4, is_monotone=True),
        cannot_reach=dict.fromkeys(others, ""),
    )


def survey(num_nodes: int = 2, *, needs: Needs | None = None, one_machine: bool = False) -> Survey:
    nodes = [node(rank, num_nodes=num_nodes, machine=0 if one_machine else None) for rank in range(num_nodes)]
    return Survey(nodes=nodes, is_local=False, needs=needs)


def spoil(found: Survey, rank: int, **changes: Any) -> Survey:
    """The survey with one node changed: fields of `NodeReport`, or keys of its facts (mappings are merged)."""
    old = found.nodes[rank]
    own = {key: value for key, value in changes.items() if hasattr(old, key) and key != "facts"}
    rest = {key: value for key, value in changes.items() if key not in own}
    merged = {
        key: {**old.facts[key], **value} if isinstance(value, Mapping) and key in old.facts else value
        for key, value in rest.items()
    }
    new = replace(old, **own, facts={**old.facts, **merged})
    return replace(found, nodes=[new if each.rank == rank else each for each in found.nodes])


def problems(found: Survey) -> list[Finding]:
    """What the checks have against a survey; each other check must have its one `ok` line."""
    findings = check_all(found)
    assert {each.level for each in findings} <= {OK, WARNING, ERROR}
    assert all(each.do and each.node for each in findings if each.level != OK)
    return [each for each in findings if each.level != OK]


def only(found: Survey) -> Finding:
    """The one problem of a survey."""
    (problem,) = problems(found)
    assert "\n" not in problem.what + problem.do
    return problem
