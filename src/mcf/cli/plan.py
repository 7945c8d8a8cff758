"""`mcf plan`: the schedule in numbers before anything runs."""

import json
import sys
from dataclasses import asdict
from typing import TextIO

from mcf.cli.compare import LIMIT_WORDS, comparison_numbers, print_comparison
from mcf.cli.files import check_target, write_text
from mcf.cli.numbers import plan_numbers, print_plan
from mcf.cli.progress import told_if_slow
from mcf.cli.settings import read_budget, read_chunk, read_dtype, read_tokens
from mcf.cli.tables import print_pairs
from mcf.cluster import Cluster
from mcf.dist.torchrun import LOCAL_WORKERS
from mcf.engine.clusters import Prediction, cluster_of, predict
from mcf.engine.compare import compare
from mcf.engine.planner import DEFAULT_POLICY, check_policy, check_window, check_workers, make_plan
from mcf.engine.source import read_shape
from mcf.errors import UserError
from mcf.schedule import dump
from mcf.sim import Profile, load_profile, rates_of
from mcf.units import count, format_seconds


def plan_command(
    model: str,
    *,
    prompt_tokens: str,
    workers: int | None,
    policy: str | None,
    chunk_tokens: str,
    kv_memory: str | None,
    max_tokens: str,
    dtype: str,
    cluster: str | None,
    save: str | None,
    is_json: bool,
) -> bool:
    """Plan and print; returns whether it fits. Raises UserError kinds; reads the model's config alone.

    With a cluster and neither a policy nor a file to save to: all policies side by side, and no schedule is built.
    """
    if policy is not None:
        check_policy(policy)
    if workers is not None:
        check_workers(workers)
    profile = None if cluster is None else load_profile(cluster).for_dtype(read_dtype(dtype))
    num_tokens, most_new = read_tokens(prompt_tokens, "--prompt-tokens"), read_tokens(max_tokens, "--max-tokens")
    chunk, budget = read_chunk(chunk_tokens), read_budget(kv_memory)
    if save is not None:
        check_target(save, what="the schedule")
    shape = read_shape(model, dtype=read_dtype(dtype))
    check_window(shape, num_tokens, min_new_tokens=0)
    where = None if profile is None else cluster_of(profile, shape, num_workers=workers, kv_memory_bytes=budget)
    most_new = min(most_new, shape.max_positions - num_tokens)
    rates = None if profile is None or where is None else rates_of(profile, where)
    if profile is not None and where is not None and rates is not None and policy is None and save is None:
        _check_closed_forms(profile, where)
        found = compare(shape, where, rates, prompt_tokens=num_tokens, chunk_tokens=chunk, max_tokens=most_new)
        if is_json:
            print(json.dumps({**comparison_numbers(found), "cluster": profile.label}, allow_nan=False))
        else:
            print_comparison(sys.stdout, found)
            if profile.clock_hz is not None:
                print(f"Times are those of {profile.label}.")
        return found.fits
    num_workers = (workers or LOCAL_WORKERS) if where is None else where.num_nodes
    named = policy or DEFAULT_POLICY
    with told_if_slow(f"planning: writing and judging the schedule of {count(num_workers, 'worker')}, policy {named}"):
        made = make_plan(
            shape,
            prompt_tokens=num_tokens,
            num_workers=num_workers,
            cluster=where,
            policy=named,
            chunk_tokens=chunk,
            kv_memory_bytes=budget,
            max_tokens=most_new,
            rates=rates,
            is_for_a_run=False,
        )
    if save is not None:
        write_text(save, dump(made.schedule), what="the schedule")
    prediction = None if profile is None else predict(made.schedule, profile, shape)
    if is_json:
        foretold = None if prediction is None else asdict(prediction)
        print(json.dumps({**plan_numbers(made.schedule, made.report), "prediction": foretold}, allow_nan=False))
    else:
        print_plan(sys.stdout, made.schedule, made.report)
        if prediction is not None:
            print_prediction(sys.stdout, prediction)
    return True


def _check_closed_forms(profile: Profile, cluster: Cluster) -> None:
    if profile.port_bytes_s is not None and not cluster.topology.is_switch:
        raise UserError(
            f"got {cluster.topology.name} and profile {profile.name!r}, whose nodes send by one port: expected a "
            "switch to predict all policies side by side; name one with --policy, and it is simulated"
        )


def print_prediction(stream: TextIO, found: Prediction) -> None:
    """Print what to expect of the schedule on the profile, and what limits it."""
    short_of = f"{found.ttft_s / found.bound_s:.2f} times the bound"
    print(file=stream)
    print_pairs(
        stream,
        [
            ("profile", found.profile + ("" if found.physical else " (no such hardware exists)")),
            ("predicted", f"{format_seconds(found.ttft_s)} to the first token, {short_of}"),
            ("waiting", f"{format_seconds(found.waiting_s)} for communication, on the node that ends last"),
            (
                "what limits",
                f"{LIMIT_WORDS[found.limit]}: at least {format_seconds(found.bound_s)} whatever the executor does",
            ),
        ],
    )
