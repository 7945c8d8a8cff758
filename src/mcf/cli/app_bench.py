"""`mcf bench`: its commands and their options."""

from typing import Annotated

import typer

from mcf.bench.settings import DECODE, PREFILL
from mcf.cli.bench import bench_command, compare_command
from mcf.cli.options import ChunkTokens, Debug, Dtype, Json, KvMemory, Model, Policy, Workers
from mcf.cli.settings import read_int, read_workers
from mcf.engine.planner import AUTO, DEFAULT_POLICY

app = typer.Typer(help="Measure prefill or decode against its bound, or compare two saved measurements.")

PromptTokens = Annotated[
    str, typer.Option("--prompt-tokens", metavar="TOKENS", help="Length of the random prompt, in tokens (2k = 2048).")
]
Threads = Annotated[
    str | None,
    typer.Option(
        "--threads", metavar="N", show_default="its share of the cores", help="Compute threads of each worker."
    ),
]
Rounds = Annotated[str, typer.Option("--rounds", metavar="N", help="Requests that count; the median is reported.")]
Warmup = Annotated[str, typer.Option("--warmup", metavar="N", help="Requests before them that do not count.")]
Seed = Annotated[str, typer.Option("--seed", metavar="INT", help="Seed of the random prompt.")]
BenchSave = Annotated[
    str | None,
    typer.Option(
        "--save", metavar="FILE", show_default=False, help="Write the JSON object to a file, for `mcf bench compare`."
    ),
]


@app.command("prefill")
def prefill(
    model: Model,
    prompt_tokens: PromptTokens = "2k",
    workers: Workers = None,
    policy: Policy = DEFAULT_POLICY,
    chunk_tokens: ChunkTokens = AUTO,
    kv_memory: KvMemory = None,
    dtype: Dtype = "float32",
    threads: Threads = None,
    rounds: Rounds = "5",
    warmup: Warmup = "1",
    seed: Seed = "0",
    save: BenchSave = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the time to first token: where it goes, and what arithmetic alone would take (docs/benchmarks.md)."""
    bench_command(
        PREFILL,
        model,
        prompt_tokens=prompt_tokens,
        max_tokens="1",
        workers=read_workers(workers),
        policy=policy,
        chunk_tokens=chunk_tokens,
        kv_memory=kv_memory,
        dtype=dtype,
        threads=None if threads is None else read_int(threads, "--threads"),
        rounds=read_int(rounds, "--rounds"),
        warmup=read_int(warmup, "--warmup"),
        seed=read_int(seed, "--seed"),
        save=save,
        is_json=json,
    )


@app.command("decode")
def decode(
    model: Model,
    prompt_tokens: PromptTokens = "2k",
    max_tokens: Annotated[
        str, typer.Option("--max-tokens", metavar="TOKENS", help="Tokens of an answer; all but the first are timed.")
    ] = "33",
    workers: Workers = None,
    policy: Policy = DEFAULT_POLICY,
    chunk_tokens: ChunkTokens = AUTO,
    kv_memory: KvMemory = None,
    dtype: Dtype = "float32",
    threads: Threads = None,
    rounds: Rounds = "5",
    warmup: Warmup = "1",
    seed: Seed = "0",
    save: BenchSave = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the time per generated token: where it goes, and what reading weights and KV alone would take."""
    bench_command(
        DECODE,
        model,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        workers=read_workers(workers),
        policy=policy,
        chunk_tokens=chunk_tokens,
        kv_memory=kv_memory,
        dtype=dtype,
        threads=None if threads is None else read_int(threads, "--threads"),
        rounds=read_int(rounds, "--rounds"),
        warmup=read_int(warmup, "--warmup"),
        seed=read_int(seed, "--seed"),
        save=save,
        is_json=json,
    )


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", show_default=False, help="A file of `mcf bench ... --save`.")],
    b: Annotated[str, typer.Argument(metavar="B", show_default=False, help="Another one.")],
    across: Annotated[
        str | None,
        typer.Option(
            "--across",
            metavar="NAMES",
            show_default=False,
            help="What A and B are meant to differ in, for example workers or policy,dtype; anything else is refused.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the ratio of two saved measurements with its spread; different machines or settings are refused."""
    compare_command(a, b, across=across, is_json=json)
