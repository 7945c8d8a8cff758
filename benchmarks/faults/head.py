"""A head for the soak, forked from a process that has imported everything: load, one request, close.

Prints what `mcf run` would: one JSON line with the ids, or `error: ...` and exit code 1. With a launcher's variables it
is one rank of a world, on the network namespace `--netns` if that is given.
"""

import argparse
import ctypes
import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext

import mcf
from mcf.dist.nursery import Nursery, lent
from mcf.dist.torchrun import here
from mcf.engine.llm import load

_CLONE_NEWNET = 0x40000000


def main(argv: Sequence[str]) -> None:
    """Run one request as told; `--head` is who forked this process."""
    parser = argparse.ArgumentParser()
    for name in ("model", "policy", "ids", "fault", "netns"):
        parser.add_argument(f"--{name}", default="")
    for name in ("workers", "chunk", "budget", "new", "head"):
        parser.add_argument(f"--{name}", type=int, default=0)
    options = parser.parse_args(argv)
    if options.netns:
        enter(options.netns)
    place = here()
    nursery = None if place is not None and place.is_guest else Nursery.branch()  # while this process has one thread
    try:
        with nullcontext() if nursery is None else lent(nursery):
            run(options)
    except mcf.McfError as error:
        print(f"error: {error}", flush=True)
        sys.exit(error.exit_code)
    finally:
        if nursery is not None:
            nursery.close()


def enter(netns: str) -> None:
    """Move this process to a network namespace of `ip netns`."""
    with open(f"/var/run/netns/{netns}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {netns}")


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
