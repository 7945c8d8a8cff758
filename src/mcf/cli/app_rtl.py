"""`mcf rtl`: its commands and their options."""

from typing import Annotated

import typer

from mcf.cli.options import Debug
from mcf.cli.rtl import build_command, report_command, tests_command

app = typer.Typer(help="The compute-NIC in hardware: test it, write its Verilog, count what it takes (docs/rtl.md).")


@app.command("test")
def run_tests(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the long checks: minutes instead of 20.")] = False,
    debug: Debug = False,
) -> None:
    """Run the hardware's unit, network and formal checks. Exit code 1: one failed."""
    if code := tests_command(is_quick=quick):
        raise typer.Exit(code)


@app.command("build")
def build(
    out: Annotated[str, typer.Option("--out", metavar="DIR", show_default=False, help="The folder to write to.")],
    debug: Debug = False,
) -> None:
    """Write the Verilog of the node's network half and of each module, the register map and the packet format."""
    build_command(out)


@app.command("report")
def report(
    place: Annotated[
        bool, typer.Option("--place", help="Place and route modules that changed since they last were: minutes each.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of a table.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print resources and logic levels per module and for the node, beside the paper's Table 2."""
    report_command(is_placing=place, is_json=json)
