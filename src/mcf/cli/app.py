"""The commands and their options; each command is a function in a module of its own."""

from typing import Annotated

import typer

import mcf
from mcf.cli import app_bench, app_rtl
from mcf.cli.doctor import doctor_command
from mcf.cli.options import ChunkTokens, Debug, Dtype, Interface, KvMemory, MaxTokens, Model, Policy, Workers
from mcf.cli.plan import plan_command
from mcf.cli.run import run_command
from mcf.cli.settings import read_float, read_int, read_timeout, read_workers
from mcf.cli.show import show_command
from mcf.cli.sim import list_command, sim_command
from mcf.dist.torchrun import here
from mcf.engine.planner import AUTO, DEFAULT_POLICY
from mcf.model import SHAPE_NAMES
from mcf.policies import NAMES as POLICIES
from mcf.sim import NAMES as PROFILES
from mcf.study.papers import NAMES as STUDIES

app = typer.Typer(
    help="MCF: long prompts on several small machines, by context parallelism with scheduled KV cache placement.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(app_bench.app, name="bench")
app.add_typer(app_rtl.app, name="rtl")


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"mcf {mcf.__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version and leave.")
    ] = False,
) -> None:
    """Stand above the commands."""


@app.command()
def run(
    model: Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", metavar="TEXT", show_default=False, help="The prompt itself.")
    ] = None,
    prompt_file: Annotated[
        str | None,
        typer.Option(
            "--prompt-file", metavar="FILE", show_default=False, help="A UTF-8 text file with the prompt; `-`: stdin."
        ),
    ] = None,
    workers: Workers = None,
    policy: Policy = DEFAULT_POLICY,
    chunk_tokens: ChunkTokens = AUTO,
    kv_memory: KvMemory = None,
    max_tokens: MaxTokens = "64",
    dtype: Dtype = "float32",
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="PROFILE",
            show_default=False,
            help="Speeds for policy `mars` to decide by: a file as for `mcf plan --cluster`, or a profile by name.",
        ),
    ] = None,
    seed: Annotated[str, typer.Option("--seed", metavar="INT", help="Seed of sampling.")] = "0",
    temperature: Annotated[
        str, typer.Option("--temperature", metavar="NUMBER", help="Sampling temperature, 0 to 100; 0 is greedy.")
    ] = "0",
    top_p: Annotated[
        str,
        typer.Option(
            "--top-p", metavar="NUMBER", help="Nucleus sampling: probability mass to keep, above 0, at most 1."
        ),
    ] = "1",
    raw: Annotated[
        bool, typer.Option("--raw", help="Take the prompt as it stands, without the chat template.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of the streamed text.")
    ] = False,
    interface: Interface = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            show_default="no limit",
            help="Give up after so long, from the start of the workers to the last token; for example 90 or 5m.",
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace", metavar="FILE", show_default=False, help="Write what happened when; opens in ui.perfetto.dev."
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Run one prompt: chunked prefill over the workers, then decode. The answer goes to stdout, all else to stderr.

    Under torchrun its processes are the workers (docs/hosts.md).
    """
    run_command(
        model,
        prompt=prompt,
        prompt_file=prompt_file,
        workers=read_workers(workers),
        policy=policy,
        chunk_tokens=chunk_tokens,
        kv_memory=kv_memory,
        max_tokens=max_tokens,
        dtype=dtype,
        cluster=cluster,
        seed=read_int(seed, "--seed"),
        temperature=read_float(temperature, "--temperature"),
        top_p=read_float(top_p, "--top-p"),
        is_raw=raw,
        is_json=json,
        interface=interface,
        timeout_s=read_timeout(timeout),
        trace=trace,
    )


@app.command()
def plan(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SHAPE",
            show_default=False,
            help=f"A model as for `mcf run`, or a shape by name, of any length: {', '.join(SHAPE_NAMES)}.",
        ),
    ],
    prompt_tokens: Annotated[
        str,
        typer.Option(
            "--prompt-tokens", metavar="TOKENS", show_default=False, help="Prompt length, in tokens (8k = 8192)."
        ),
    ],
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            metavar="N",
            show_default="2, or as many as --cluster has; under torchrun one for each of its processes",
            help="Context-parallel worker processes.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="NAME",
            show_default=f"all side by side with --cluster, else {DEFAULT_POLICY}",
            help=f"Who computes, keeps and fetches which KV: {', '.join(POLICIES)}.",
        ),
    ] = None,
    chunk_tokens: ChunkTokens = AUTO,
    kv_memory: KvMemory = None,
    max_tokens: MaxTokens = "64",
    dtype: Dtype = "float32",
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="PROFILE",
            show_default=False,
            help="Hardware to plan for and to predict the time on: a file of `mcf doctor --measure --save`, one "
            f"with a table \\[cluster], or {', '.join(PROFILES)}.",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option("--save", metavar="FILE", show_default=False, help="Write the schedule as text, for `mcf show`."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of a table.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Print what a prompt will take before anything runs. Reads no weights.

    With --policy: one schedule in numbers: memory, traffic, replicas. With --cluster and no policy: all policies side
    by side; exit code 1 where none of them fits.
    """
    fits = plan_command(
        model,
        prompt_tokens=prompt_tokens,
        workers=None if workers is None and here() is None else read_workers(workers),
        policy=policy,
        chunk_tokens=chunk_tokens,
        kv_memory=kv_memory,
        max_tokens=max_tokens,
        dtype=dtype,
        cluster=cluster,
        save=save,
        is_json=json,
    )
    if not fits:
        raise typer.Exit(1)


@app.command()
def show(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="A schedule saved by `mcf plan --save` (`-`: stdin); with --play a trace.",
        ),
    ],
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Judge it by the laws V1-V8 instead: a report, or the broken law and the grid."),
    ] = False,
    play: Annotated[
        bool,
        typer.Option(
            "--play", help="Write an HTML page that replays a trace of `mcf run --trace` or `mcf sim run --save-trace`."
        ),
    ] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="FILE", show_default="beside the trace", help="The page's file."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Print a saved schedule: a line per step, then the step-by-node grid. Or replay a trace."""
    show_command(file, is_verify=verify, is_play=play, out=out)


@app.command()
def doctor(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", show_default=False, help="As for `run`: whether it fits, and is the same on every node."
        ),
    ] = None,
    workers: Workers = None,
    kv_memory: KvMemory = None,
    dtype: Dtype = "float32",
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure compute, memory and every link, all workers at once.")
    ] = False,
    save: Annotated[
        str | None,
        typer.Option(
            "--save", metavar="FILE", show_default=False, help="Write what was measured as a cluster profile (.toml)."
        ),
    ] = None,
    interface: Interface = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of lines.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Look at every node before weights load: versions, network, clocks, memory, cores, disk. Exit code 1: an error."""
    is_well = doctor_command(
        model,
        workers=read_workers(workers),
        kv_memory=kv_memory,
        dtype=dtype,
        is_measuring=measure,
        save=save,
        interface=interface,
        is_json=json,
    )
    if not is_well:
        raise typer.Exit(1)


sim = typer.Typer(help="Simulate: the paper's tables and figures, or cases of your own, in model time.")
app.add_typer(sim, name="sim")


@sim.command("run")
def sim_run(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE.toml",
            show_default=False,
            help=f"One of {', '.join(STUDIES)}; or a TOML file of your own (docs/simulator.md).",
        ),
    ],
    out: Annotated[
        str | None,
        typer.Option("--out", metavar="DIR", show_default=False, help="Write CSV, JSON, PNG and an HTML page there."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of tables.")
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="PROFILE",
            show_default=False,
            help="A preset or a TOML file, instead of the file's own.",
        ),
    ] = None,
    save_trace: Annotated[
        str | None,
        typer.Option(
            "--save-trace",
            metavar="FILE",
            show_default=False,
            help="Write what happened when, of a file with a single case; `mcf show --play` replays it.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Print model times, bytes and memory; of the paper, each value and claim with a flag and its arithmetic."""
    sim_command(name, out=out, is_json=json, profile=profile, save_trace=save_trace)


@sim.command("list")
def sim_list(debug: Debug = False) -> None:
    """Print the profiles, models, policies and topologies that a TOML file may name."""
    list_command()
