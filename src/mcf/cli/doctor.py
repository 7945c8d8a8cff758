"""`mcf doctor`: what is wrong with the nodes, before any weight loads."""

import json
import shlex
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from rich.text import Text

from mcf.cli.files import check_target, write_text
from mcf.cli.settings import read_budget, read_dtype
from mcf.cli.tables import console, print_columns
from mcf.engine.doctor import ERROR, WARNING, Finding
from mcf.engine.doctor.clusterfile import cluster_profile
from mcf.engine.doctor.measure import Measurement
from mcf.engine.doctor.visit import Visit, visit
from mcf.engine.planner import check_workers
from mcf.errors import UserError
from mcf.units import format_rate, format_seconds

_STYLES = {ERROR: "bold red", WARNING: "yellow"}
_WIDTH = len(WARNING)
_MOST_LINKS = 24  # lines that a person still reads


def doctor_command(
    model: str | None,
    *,
    workers: int,
    kv_memory: str | None,
    dtype: str,
    is_measuring: bool,
    save: str | None,
    interface: str | None,
    is_json: bool,
) -> bool:
    """Examine, measure where asked, save and print; return whether no node has an error. Raises UserError kinds.

    In a torchrun process other than rank 0 it obeys the doctor of rank 0 and raises SystemExit(0).
    """
    check_workers(workers)
    budget, dtype = read_budget(kv_memory), read_dtype(dtype)
    if save is not None:
        if not is_measuring:
            raise UserError("got --save without --measure: expected both, since measured numbers are what is saved")
        check_profile_target(save)
    found = visit(
        model,
        workers=workers,
        kv_memory_bytes=budget,
        dtype=dtype,
        is_measuring=is_measuring,
        interface=interface,
    )
    if save is not None and found.measured is not None:
        write_text(save, _profile_text(found, found.measured, Path(save).stem), what="the cluster profile")
    if is_json:
        print(json.dumps(doctor_object(found), allow_nan=False))
    else:
        print_findings(sys.stdout, found.findings)
        if found.measured is not None:
            print_measurement(sys.stdout, found.measured)
        elif is_measuring:
            print("not measured: mend the errors first", file=sys.stderr)
    return found.is_well


def check_profile_target(save: str) -> None:
    """Raise UserError where no profile could be written, or where it could not be read again for its name."""
    if not save.endswith(".toml"):
        raise UserError(f"got --save {save!r}: expected a file name that ends in .toml, as profiles do")
    check_target(save, what="the cluster profile")


def _profile_text(found: Visit, measured: Measurement, name: str) -> str:
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    command = shlex.join(["mcf", *sys.argv[1:]])
    return cluster_profile(measured, found.survey, name=name, command=command, date=date)


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
        "measured": None if found.measured is None else _measured_object(found.measured),
    }


def _measured_object(found: Measurement) -> dict[str, Any]:
    links = [
        {"from": src, "to": dst, "bytes_s": rate, "latency_s": found.link_latency_s[src, dst]}
        for (src, dst), rate in found.link_bytes_s.items()
    ]
    nodes = [dict(rates, port_bytes_s=port) for rates, port in zip(found.rates, found.port_bytes_s, strict=True)]
    return {"nodes": nodes, "links": links, "sizes": dict(found.sizes)}


def print_findings(stream: TextIO, findings: list[Finding]) -> None:
    """Print a line for each finding: level, check, node, what, and the cure."""
    checks = max(len(finding.check) for finding in findings)
    for finding in findings:
        where, cure = (f"{finding.node}: " if finding.node else ""), (f"; do: {finding.do}" if finding.do else "")
        head = (finding.level.ljust(_WIDTH), _STYLES.get(finding.level, "green"))
        line = Text.assemble(head, "  ", (finding.check.ljust(checks), "bold"), "  ", f"{where}{finding.what}{cure}")
        console(stream).print(line, soft_wrap=True)


def print_measurement(stream: TextIO, found: Measurement) -> None:
    """Print a line per worker and one per link."""
    print(file=stream)
    names = ("all at once", "dense f32", "dense bf16", "attend f32", "attend bf16", "weights f32", "copy", "port out")
    rows = []
    for rank, (rates, port) in enumerate(zip(found.rates, found.port_bytes_s, strict=True)):
        works = ("float32_flops_s", "bfloat16_flops_s", "float32_attention_flops_s", "bfloat16_attention_flops_s")
        moves = (rates["float32_memory_bytes_s"], rates["stream_bytes_s"], port)
        cells = [f"{rates[name] / 1e9:.1f} GFLOP/s" for name in works] + [f"{rate / 1e9:.2f} GB/s" for rate in moves]
        rows.append([f"worker {rank}", *cells])
    print_columns(stream, names, rows)
    if found.link_bytes_s:
        print(file=stream)
        rates_s = sorted(found.link_bytes_s.items())
        print_columns(
            stream,
            ("one link at a time", "bandwidth", "latency"),
            [
                [f"{a} -> {b}", format_rate(8 * rate), format_seconds(found.link_latency_s[a, b])]
                for (a, b), rate in rates_s[:_MOST_LINKS]
            ],
        )
        if len(rates_s) > _MOST_LINKS:
            print(f"... and {len(rates_s) - _MOST_LINKS} more links; --json and --save have them all", file=stream)
