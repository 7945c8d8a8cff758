"""Options that several commands share, as typer reads them."""

from typing import Annotated

import typer

from mcf.model import DTYPE_BYTES
from mcf.policies import NAMES

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="A Hugging Face folder (safetensors), a GGUF file, a hub id, or `demo` (scripts/setup installs it).",
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        "--workers",
        metavar="N",
        show_default="2; under torchrun one for each of its processes",
        help="Context-parallel worker processes.",
    ),
]
Policy = Annotated[
    str, typer.Option("--policy", metavar="NAME", help=f"Who computes, keeps and fetches which KV: {', '.join(NAMES)}.")
]
ChunkTokens = Annotated[
    str,
    typer.Option(
        "--chunk-tokens",
        metavar="TOKENS",
        help="Prefill chunk size over all workers, in tokens (1k = 1024); `auto`: 1,024 per worker; with one "
        "worker, or with a KV budget, 512, and less where the budget asks.",
    ),
]
KvMemory = Annotated[
    str | None,
    typer.Option(
        "--kv-memory",
        metavar="BYTES",
        show_default="no limit",
        help="KV cache budget of each worker, in bytes or for example 256MiB, 2GiB.",
    ),
]
MaxTokens = Annotated[
    str,
    typer.Option(
        "--max-tokens", metavar="TOKENS", help="Most tokens to generate; cut to what the model's window leaves."
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="DTYPE", help=f"Type of weights, activations and KV cache: {', '.join(sorted(DTYPE_BYTES))}."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, the worker's too.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object (docs/json.md) instead of a table.")]
Interface = Annotated[
    str | None,
    typer.Option(
        "--interface",
        metavar="NAME",
        show_default="the one that leads to MASTER_ADDR",
        help="Under torchrun: the network interface that carries the run, for example eth0 (or set MCF_INTERFACE).",
    ),
]
