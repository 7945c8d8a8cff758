"""A head for the soak, forked from a process that has imported everything: load, one request, close.

Prints what `mcf run` would: one JSON line with the ids, or `error: ...` and exit code 1.
"""

import argparse
import json
import sys
from collections.abc import Sequence

import mcf
from mcf.dist.nursery import Nursery, lent
from mcf.engine.llm import load


def main(argv: Sequence[str]) -> None:
    """Run one request as told; `--head` is who forked this process."""
    parser = argparse.ArgumentParser()
    for name in ("model", "policy", "ids", "fault"):
        parser.add_argument(f"--{name}", default="")
    for name in ("workers", "chunk", "budget", "new", "head"):
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args(argv)
    nursery = Nursery.branch()  # while this process has one thread
    try:
        with lent(nursery):
            run(options)
    except mcf.McfError as error:
        print(f"error: {error}", flush=True)
        sys.exit(error.exit_code)
    finally:
        nursery.close()


def run(options: argparse.Namespace) -> None:
    """Load, say that it is loaded, generate, close, and tell."""
    with load(
        options.model,
        workers=options.workers,
        policy=options.policy,
        chunk_tokens=options.chunk,
        kv_memory=options.budget or None,
        fault=options.fault,
        poison=True,
    ) as llm:
        ids = [int(number) for number in options.ids.split(",")]
        result = llm.generate(ids, max_tokens=options.new, ignore_eos=True)
    print(json.dumps({"ids": result.token_ids}), flush=True)
