"""All checks in one table: pure functions from a `Survey` to findings. What each looks for and why: docs/doctor.md."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mcf.engine.doctor.agreement import (
    check_clocks,
    check_model,
    check_versions,
    clocks_seen,
    model_seen,
    versions_seen,
)
from mcf.engine.doctor.machine import (
    check_cores,
    check_disk,
    check_files,
    check_memory,
    cores_seen,
    disk_seen,
    files_seen,
    memory_seen,
)
from mcf.engine.doctor.network import check_network, check_ports, network_seen, ports_seen
from mcf.engine.doctor.survey import ERROR, OK, Finding, Survey


@dataclass(frozen=True, kw_only=True)
class Check:
    """One row: `find` yields problems; where there are none, `seen` says in a line what was found in order."""

    name: str
    find: Callable[[Survey], Iterator[Finding]]
    seen: Callable[[Survey], str]


CHECKS = (
    Check(name="versions", find=check_versions, seen=versions_seen),
    Check(name="network", find=check_network, seen=network_seen),
    Check(name="ports", find=check_ports, seen=ports_seen),
    Check(name="clocks", find=check_clocks, seen=clocks_seen),
    Check(name="memory", find=check_memory, seen=memory_seen),
    Check(name="cores", find=check_cores, seen=cores_seen),
    Check(name="disk", find=check_disk, seen=disk_seen),
    Check(name="files", find=check_files, seen=files_seen),
    Check(name="model", find=check_model, seen=model_seen),
)


def check_all(survey: Survey) -> list[Finding]:
    """Return every finding, check by check: problems, or one `ok` line each."""
    out: list[Finding] = []
    for check in CHECKS:
        if check.name != "model" or survey.has_model:
            out += list(check.find(survey)) or [Finding(level=OK, check=check.name, what=check.seen(survey))]
    return out


def has_error(findings: list[Finding]) -> bool:
    """Say whether a node has an error."""
    return any(finding.level == ERROR for finding in findings)
