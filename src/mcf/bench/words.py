"""Measurements in words: the lines of the terminal."""

from collections.abc import Mapping
from typing import Any

from mcf.bench.settings import PREFILL
from mcf.units import count, format_bytes, format_seconds

Rows = list[tuple[str, str]]


def measurement_rows(found: Mapping[str, Any]) -> Rows:
    """Return (name, value) lines of one measurement."""
    settings, seconds, bound = found["settings"], found["seconds"], found["bound"]
    is_prefill = found["kind"] == PREFILL
    what = "time to first token" if is_prefill else "time per token"
    return [
        ("measured", _settings_text(found)),
        ("bound", f"{format_seconds(bound['seconds'])} = {_bound_text(found)}"),
        (
            what,
            f"{_spread_text(seconds)} over {count(settings['rounds'], 'round')}, {found['tokens_per_s']:,.1f} tokens/s",
        ),
        ("bound / achieved", f"{found['achieved_of_bound']:.2f}"),
        ("breakdown", _parts_text(found["breakdown"])),
        *((f"memory, worker {rank}", _memory_text(row)) for rank, row in enumerate(found["memory"])),
        ("machine", _machine_text(found["environment"])),
    ]


def comparison_rows(found: Mapping[str, Any]) -> Rows:
    """Return (name, value) lines of a comparison."""
    ratio, seconds = found["ratio"], [format_seconds(value) for value in found["seconds"]]
    differing = [f"{name} ({a} and {b})" for name, (a, b) in found["differences"].items()]
    return [
        ("A / B", f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f}, opposite quartiles)"),
        ("medians", f"{seconds[0]} and {seconds[1]}"),
        ("bound / achieved", " and ".join(f"{value:.2f}" for value in found["achieved_of_bound"])),
        ("different", ", ".join(differing) or "nothing: same machine, versions and settings"),
    ]


def _settings_text(found: Mapping[str, Any]) -> str:
    s = found["settings"]
    more = "" if found["kind"] == PREFILL else f" and {s['max_tokens'] - 1:,} more"
    return (
        f"{s['model']}, {s['dtype']}, {count(s['prompt_tokens'], 'token')}{more}; policy {s['policy']}, "
        f"{count(s['workers'], 'worker')} of {count(s['threads'], 'thread')}, chunks of {found['chunk_tokens']:,}"
    )


def _bound_text(found: Mapping[str, Any]) -> str:
    bound = found["bound"]
    if found["kind"] == PREFILL:
        rates = " + ".join(f"{rate / 1e9:,.0f}" for rate in bound["flops_s"])
        return f"{bound['flops'] / 1e12:,.2f} TFLOP over {rates} GFLOP/s (matrix product, all workers at once)"
    rate = min(bound["read_bytes_s"])
    return (
        f"{format_bytes(bound['bytes_per_worker'])} of weights and KV over {format_bytes(rate)}/s (read, all at once)"
    )


def _spread_text(seconds: Mapping[str, Any]) -> str:
    low, high = format_seconds(seconds["min"]), format_seconds(seconds["max"])
    return f"{format_seconds(seconds['median'])} ({low} to {high})"


def _parts_text(parts: Mapping[str, float]) -> str:
    shown = {name.removesuffix("_s"): format_seconds(value) for name, value in parts.items()}
    return (
        f"compute {shown['compute']} + exposed communication {shown['exposed_communication']} + "
        f"other {shown['other']}; communication {shown['communication']} in all"
    )


def _memory_text(row: Mapping[str, Any]) -> str:
    names = {"base_bytes": "process", "weight_bytes": "weights", "pool_bytes": "pool", "buffer_bytes": "buffers"}
    parts = " + ".join(f"{word} {format_bytes(row[name])}" for name, word in names.items())
    return f"peak {format_bytes(row['peak_rss_bytes'])} of {format_bytes(row['stated_bytes'])} stated: {parts}"


def _machine_text(where: Mapping[str, Any]) -> str:
    machine = where["machine"]
    return (
        f"{machine['cpu']}, {machine['cores']} cores; load {where['load']:.1f} before, {where['load_after']:.1f} after"
    )
