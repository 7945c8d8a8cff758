"""A verified schedule in numbers: the object of `mcf plan --json` (docs/json.md) and the tables made of it."""

from collections.abc import Mapping, Sequence
from typing import Any, TextIO

import numpy as np

from mcf.cli.tables import print_columns, print_pairs
from mcf.schedule import UNLIMITED, Report, Schedule, digest, to_bytes
from mcf.schedule.steps import KIND_NAMES
from mcf.units import count, format_bytes

PURPOSE_WORDS = {"new_kv": "new KV", "fetched_kv": "fetched KV", "query": "queries", "state": "states"}
_MOST_NODES, _MOST_FACTORS = 16, 24  # lines and values that a person still reads


def plan_numbers(sched: Schedule, report: Report) -> dict[str, Any]:
    """Return the documented, stable object of `mcf plan --json`."""
    meta, budgets = sched.meta, set(sched.meta.budgets)
    return {
        "policy": meta.policy,
        "workers": meta.num_nodes,
        "prompt_tokens": meta.prompt_tokens,
        "max_tokens": meta.max_new_tokens,
        "chunk_tokens": meta.chunk_tokens,
        "num_chunks": meta.num_chunks,
        "num_rows": count_rows(sched),
        "peak_kv_bytes": list(report.peak_bytes),
        "page_bytes": list(report.page_bytes),
        "slot_bytes": list(report.slot_bytes),
        "reserve_bytes": list(report.reserve_bytes),
        "kv_budget_bytes": None if budgets == {UNLIMITED} else min(budgets - {UNLIMITED}),
        "bytes": dict(report.traffic),
        "bytes_per_token": dict(report.decode_traffic),
        "replica_factor": list(report.replica_factor),
        "tokens_per_worker": list(report.shares),
        "sha256": digest(to_bytes(sched)),
    }


def count_rows(sched: Schedule) -> dict[str, int]:
    """Return how many rows of each kind the schedule has."""
    counts = np.bincount(sched.steps["kind"], minlength=max(KIND_NAMES) + 1)
    return {name: int(counts[kind]) for kind, name in KIND_NAMES.items()}


def print_plan(stream: TextIO, sched: Schedule, report: Report) -> None:
    """Print the tables: sizes, rows, memory per node, traffic, replicas, shares."""
    meta, counts = sched.meta, count_rows(sched)
    token_bytes = meta.kv_row_bytes() * meta.num_layers
    prompt_kv = format_bytes(token_bytes * meta.prompt_tokens)
    print_pairs(
        stream,
        [
            ("policy", f"{meta.policy}, {count(meta.num_nodes, 'worker')}, topology {meta.topology}"),
            (
                "prompt",
                f"{count(meta.prompt_tokens, 'token')} in {count(meta.num_chunks, 'chunk')} of {meta.chunk_tokens:,}",
            ),
            ("answer", f"at most {count(meta.max_new_tokens, 'token')}" if meta.max_new_tokens else "none planned"),
            ("KV cache", f"{token_bytes:,} bytes per token, {prompt_kv} for the prompt"),
            ("rows", ", ".join(f"{num:,} {name}" for name, num in counts.items()) + f"; {len(sched):,} in all"),
            ("prefill sends", traffic_text(report.traffic)),
            ("decode sends", f"{traffic_text(report.decode_traffic)} per token"),
            ("replica factor", f"{factors_text(report.replica_factor)} (copies per token after each chunk)"),
        ],
    )
    print(file=stream)
    _print_memory(stream, sched, report)


def traffic_text(traffic: Mapping[str, int]) -> str:
    """Return bytes by purpose in words, with their sum."""
    parts = ", ".join(f"{PURPOSE_WORDS.get(name, name)} {format_bytes(size)}" for name, size in traffic.items())
    return f"{format_bytes(sum(traffic.values()))} ({parts})"


def factors_text(factors: Sequence[float]) -> str:
    """Return replica factors, thinned out where there are many."""
    if len(factors) <= _MOST_FACTORS:
        return " ".join(f"{factor:.2f}" for factor in factors)
    picks = np.linspace(0, len(factors) - 1, _MOST_FACTORS).round().astype(int).tolist()
    return f"{' '.join(f'{factors[i]:.2f}' for i in picks)} ({_MOST_FACTORS} of {len(factors)})"


def _print_memory(stream: TextIO, sched: Schedule, report: Report) -> None:
    budgets = sched.meta.budgets
    rows = []
    for node in range(min(sched.meta.num_nodes, _MOST_NODES)):
        sizes = (report.peak_bytes, report.page_bytes, report.slot_bytes, report.reserve_bytes)
        budget = "no limit" if budgets[node] == UNLIMITED else format_bytes(budgets[node])
        rows.append([f"node {node}", *(format_bytes(size[node]) for size in sizes), budget, f"{report.shares[node]:,}"])
    names = ("KV memory", "peak", "pages", "slots", "reserve (in pages)", "budget", "tokens owned at the end")
    print_columns(stream, names, rows)
    if sched.meta.num_nodes > _MOST_NODES:
        worst = int(np.argmax(report.peak_bytes))
        print(
            f"... and {sched.meta.num_nodes - _MOST_NODES} more nodes; the largest peak is "
            f"{format_bytes(report.peak_bytes[worst])}, on node {worst}",
            file=stream,
        )
