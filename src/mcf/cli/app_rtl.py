"""`mcf rtl`: its commands and their options."""

from typing import Annotated

import typer

from mcf.cli.options import Debug
from mcf.cli.rtl import build_command, report_command, tests_command
from mcf.cli.rtl_decode import DECODE_LINKS, DEFAULT_CONTEXT, DEFAULT_NODES, decode_command
from mcf.cli.rtl_sim import DEFAULT_LINKS, DEFAULT_MESH, simulate_command
from mcf.cli.settings import check_alone, read_float, read_int, read_tokens

app = typer.Typer(help="The compute-NIC in hardware: test it, write its Verilog, count what it takes (docs/rtl.md).")


@app.command("test")
def run_tests(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the long checks: 2 minutes instead of 12.")] = False,
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
    """Write the Verilog of the node and of each module, the register map and the packet format."""
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


@app.command("sim")
def simulate(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", show_default=False, help="A schedule saved by `mcf plan --save`.")
    ] = None,
    mesh: Annotated[
        str | None, typer.Option("--mesh", metavar="WxH", show_default=DEFAULT_MESH, help="The nodes, as a grid.")
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Instead of FILE: multicast, replicas that drain while read, merged states.")
    ] = False,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Nodes with compute halves and memories: real INT4 KV, attention in hardware."),
    ] = False,
    decode: Annotated[
        str | None,
        typer.Option(
            "--decode",
            metavar="MODEL",
            show_default=False,
            help="Instead of FILE: one decode step's attention of a model by name, on whole nodes.",
        ),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="N", show_default=DEFAULT_NODES, help="With --decode: nodes.")
    ] = None,
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="TOKENS", show_default=DEFAULT_CONTEXT, help="With --decode: its context."),
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers", metavar="L", show_default="as many as take a minute", help="With --decode: layers to simulate."
        ),
    ] = None,
    decode_tokens: Annotated[
        str | None,
        typer.Option("--decode-tokens", metavar="N", show_default="4, or as the schedule has room", help="To decode."),
    ] = None,
    links: Annotated[
        str | None,
        typer.Option(
            "--links",
            metavar="KIND",
            show_default=f"{DEFAULT_LINKS}; with --decode {DECODE_LINKS}",
            help="credit: with the link layer; plain: beats as they are.",
        ),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            "--noise", metavar="SHARE", show_default="0", help="Damage, lose or double this share of the wires' words."
        ),
    ] = None,
    waveform: Annotated[
        str | None,
        typer.Option("--waveform", metavar="FILE", show_default=False, help="Write all wires as a VCD: large, slow."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of tables.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Run a schedule, or a decode step, on a mesh of simulated nodes: cycles by phase, use of links and memory."""
    if decode is not None:
        schedules = {"file": file, "demo": demo or None, "decode_tokens": decode_tokens, "mesh": mesh}
        check_alone("--decode", **schedules, waveform=waveform, noise=noise, whole=whole or None)
        decode_command(
            decode,
            num_nodes=read_int(nodes or DEFAULT_NODES, "--nodes"),
            context=read_tokens(context or DEFAULT_CONTEXT, "--context"),
            num_layers=None if layers is None else read_int(layers, "--layers"),
            links=links or DECODE_LINKS,
            is_json=json,
        )
        return
    check_alone("a schedule", nodes=nodes, context=context, layers=layers)
    simulate_command(
        file,
        mesh=mesh or DEFAULT_MESH,
        is_demo=demo,
        decode_tokens=None if decode_tokens is None else read_int(decode_tokens, "--decode-tokens"),
        links=links or DEFAULT_LINKS,
        noise=0.0 if noise is None else read_float(noise, "--noise"),
        waveform=waveform,
        is_whole=whole,
        is_json=json,
    )
