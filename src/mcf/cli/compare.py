"""`mcf plan` without a policy: all policies side by side, as an object (docs/json.md) or a table."""

from typing import Any, TextIO

from mcf.cli.tables import print_columns
from mcf.engine.compare import Comparison, PolicyRow
from mcf.units import format_bytes, format_seconds

LIMIT_WORDS = {
    "compute": "compute",
    "weights": "weight streaming",
    "inbound": "inbound cut",
    "bisection": "bisection",
    "latency": "latency",
}
NAMES = ("policy", "TTFT", "bound", "limit", "chunk", "bytes", "worst link", "peak KV", "fits")


def comparison_numbers(found: Comparison) -> dict[str, Any]:
    """Return the documented, stable object of `mcf plan --json` without a policy."""
    return {
        "rows": [_row_numbers(row) for row in found.rows],
        "fits": found.fits,
        "bound_s": found.bound_s,
        "n_star_tokens": found.n_star,
    }


def _row_numbers(row: PolicyRow) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "nodes": row.nodes,
        "prompt_tokens": row.prompt_tokens,
        "chunk_tokens": row.chunk_tokens,
        "ttft_s": row.ttft_s,
        "bound_s": row.bound_s,
        "limit": row.limit,
        "bounds": dict(row.bounds),
        "traffic_bytes": row.traffic_bytes,
        "link_bytes": row.link_bytes,
        "peak_kv_bytes": row.peak_kv_bytes,
        "missing_bytes": row.missing_bytes,
        "fits": row.fits,
        "is_reference": row.is_reference,
    }


def print_comparison(stream: TextIO, found: Comparison) -> None:
    """Print one line per policy, the fastest that fits first, and what no policy can beat."""
    print_columns(stream, NAMES, [_cells(row) for row in found.rows])
    print(file=stream)
    print(f"No schedule on these nodes takes less than {format_seconds(found.bound_s)}.", file=stream)
    print(f"Fetched history hides behind attention from {found.n_star:,.1f} tokens per node and chunk on.", file=stream)
    if any(row.is_reference for row in found.rows):
        print("In brackets: for reference, no policy of `mcf run`.", file=stream)


def _cells(row: PolicyRow) -> list[str]:
    return [
        f"({row.policy})" if row.is_reference else row.policy,
        format_seconds(row.ttft_s),
        format_seconds(row.bound_s),
        LIMIT_WORDS[row.limit],
        f"{row.chunk_tokens:,}",
        format_bytes(row.traffic_bytes),
        format_bytes(row.link_bytes),
        format_bytes(row.peak_kv_bytes),
        "yes" if row.fits else f"{format_bytes(row.missing_bytes)} short",
    ]
