"""`mcf doctor`: what is wrong with the nodes, before any weight loads."""

import json
import sys
from dataclasses import asdict
from typing import Any, TextIO

from rich.text import Text

from mcf.cli.settings import read_budget, read_dtype
from mcf.cli.tables import console
from mcf.engine.doctor import ERROR, WARNING, Finding
from mcf.engine.doctor.visit import Visit, visit
from mcf.engine.planner import check_workers

_STYLES = {ERROR: "bold red", WARNING: "yellow"}
_WIDTH = len(WARNING)


def doctor_command(model: str | None, *, workers: int, kv_memory: str | None, dtype: str, is_json: bool) -> bool:
    """Examine and print; return whether no node has an error. Raises UserError kinds."""
    check_workers(workers)
    found = visit(model, workers=workers, kv_memory_bytes=read_budget(kv_memory), dtype=read_dtype(dtype))
    if is_json:
        print(json.dumps(doctor_object(found), allow_nan=False))
    else:
        print_findings(sys.stdout, found.findings)
    return found.is_well


def doctor_object(found: Visit) -> dict[str, Any]:
    """Return the documented, stable object of `mcf doctor --json`."""
    levels = [finding.level for finding in found.findings]
    return {
        "ok": found.is_well,
        "errors": levels.count(ERROR),
        "warnings": levels.count(WARNING),
        "findings": [asdict(finding) for finding in found.findings],
        "workers": len(found.survey.nodes),
        "nodes": [
            {
                "rank": node.rank,
                "address": node.address,
                "versions": dict(node.versions),
                "clock_offset_s": node.clock.offset_s,
                "round_trip_s": node.clock.round_trip_s,
                **node.facts,
            }
            for node in found.survey.nodes
        ],
    }


def print_findings(stream: TextIO, findings: list[Finding]) -> None:
    """Print a line for each finding: level, check, node, what, and the cure."""
    checks = max(len(finding.check) for finding in findings)
    for finding in findings:
        where, cure = (f"{finding.node}: " if finding.node else ""), (f"; do: {finding.do}" if finding.do else "")
        head = (finding.level.ljust(_WIDTH), _STYLES.get(finding.level, "green"))
        line = Text.assemble(head, "  ", (finding.check.ljust(checks), "bold"), "  ", f"{where}{finding.what}{cure}")
        console(stream).print(line, soft_wrap=True)
