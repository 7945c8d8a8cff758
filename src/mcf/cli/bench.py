"""`mcf bench`: measure one configuration, or compare two saved measurements."""

import json
import sys
from typing import Any

from mcf.bench.settings import Settings
from mcf.cli.files import check_target, read_text, write_text
from mcf.cli.settings import read_budget, read_chunk, read_dtype, read_tokens
from mcf.cli.tables import print_pairs
from mcf.dist.world import threads_per_worker


def bench_command(
    kind: str,
    model: str,
    *,
    prompt_tokens: str,
    max_tokens: str,
    workers: int,
    policy: str,
    chunk_tokens: str,
    kv_memory: str | None,
    dtype: str,
    threads: int | None,
    rounds: int,
    warmup: int,
    seed: int,
    save: str | None,
    is_json: bool,
) -> None:
    """Measure, tell and save. Raises UserError and RunError kinds."""
    settings = Settings(
        kind=kind,
        model=model,
        prompt_tokens=read_tokens(prompt_tokens, "--prompt-tokens"),
        max_tokens=read_tokens(max_tokens, "--max-tokens"),
        workers=workers,
        policy=policy,
        chunk_tokens=read_chunk(chunk_tokens),
        kv_memory_bytes=read_budget(kv_memory),
        dtype=read_dtype(dtype),
        threads=threads or threads_per_worker(max(workers, 1)),
        rounds=rounds,
        warmup=warmup,
        seed=seed,
    )
    if save is not None:
        check_target(save, what="the measurement")
    found = _measure(settings)
    if save is not None:
        write_text(save, json.dumps(found, indent=1, allow_nan=False) + "\n", what="the measurement")
    _tell(found, is_json=is_json, is_comparison=False)


def compare_command(a: str, b: str, *, across: str | None, is_json: bool) -> None:
    """Print the ratio of two saved measurements. Raises UserError where they are not comparable."""
    from mcf.bench.compare import compare, read_measurement  # torch comes with it: seconds

    both = [read_measurement(read_text(name, what="a saved measurement"), name) for name in (a, b)]
    names = [name.strip() for name in across.split(",")] if across else []
    _tell(compare(both[0], both[1], across=names), is_json=is_json, is_comparison=True)


def _measure(settings: Settings) -> dict[str, Any]:
    from mcf.bench.run import measure  # torch: seconds, and what was checked until here does without
    from mcf.engine import llm

    return measure(
        settings,
        load_model=llm.load,
        command=["mcf", *sys.argv[1:]],
        on_round=lambda label, seconds: print(f"{label}: {seconds:.3f} s", file=sys.stderr, flush=True),
    )


def _tell(found: dict[str, Any], *, is_json: bool, is_comparison: bool) -> None:
    from mcf.bench.words import comparison_rows, measurement_rows

    if is_json:
        print(json.dumps(found, allow_nan=False))
    else:
        print_pairs(sys.stdout, comparison_rows(found) if is_comparison else measurement_rows(found))
