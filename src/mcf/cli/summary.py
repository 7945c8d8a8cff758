"""The short table at the end of a run."""

from typing import TYPE_CHECKING, Any, TextIO

from mcf.cli.numbers import traffic_text
from mcf.cli.tables import Rows, print_pairs
from mcf.units import count, format_bytes, format_seconds

if TYPE_CHECKING:
    from mcf.engine.result import Result


def print_summary(stream: TextIO, result: "Result") -> None:
    """Print times, bytes by purpose, KV peaks against the budget, replica factors and the certificate."""
    print(file=stream)
    print_pairs(stream, summary_rows(result))


def summary_rows(result: "Result") -> Rows:
    """Return (name, value) lines."""
    end = "the model ended it" if result.finish_reason == "stop" else "cut at --max-tokens or the window"
    chunk = count(result.chunk_tokens, "token")
    return [
        ("run", f"policy {result.policy}, {count(result.workers, 'worker')}, chunks of {chunk}"),
        ("time to first token", _ttft_text(result)),
        ("prefill", f"{count(result.prompt_tokens, 'token')}, {result.prompt_tokens / result.ttft_s:,.0f} tokens/s"),
        ("decode", f"{_decode_text(result)} ({end})"),
        ("bytes sent", traffic_text(result.bytes)),
        ("peak KV", _peak_text(result)),
        ("replica factor", _factor_text(result.replica_factor)),
        ("certificate", certificate_text(result.certificate)),
    ]


def _ttft_text(result: "Result") -> str:
    parts = {name.removesuffix("_s"): format_seconds(seconds) for name, seconds in result.breakdown.items()}
    return (
        f"{format_seconds(result.ttft_s)} = compute {parts['compute']} + exposed communication "
        f"{parts['exposed_communication']} + other {parts['other']}; communication {parts['communication']} in all"
    )


def _decode_text(result: "Result") -> str:
    num = len(result.token_ids)
    if num < 2 or result.decode_s <= 0:
        return f"{count(num, 'token')}, too few for a rate"
    return f"{count(num, 'token')}, {(num - 1) / result.decode_s:,.1f} tokens/s"  # the first came with prefill


def _peak_text(result: "Result") -> str:
    budget = result.kv_budget_bytes
    peaks = result.peak_kv_bytes
    texts = [format_bytes(peak) + (f" ({peak / budget:.0%})" if budget else "") for peak in peaks]
    nodes = ", ".join(f"node {node} {text}" for node, text in enumerate(texts))
    return f"{nodes} of a budget of {format_bytes(budget)} each" if budget else f"{nodes}, no budget"


def _factor_text(factors: list[float]) -> str:
    return f"start {factors[0]:.2f}, middle {factors[len(factors) // 2]:.2f}, end {factors[-1]:.2f} (copies per token)"


def certificate_text(certificate: dict[str, Any]) -> str:
    """Return the certificate in one line."""
    shares = " + ".join(f"{round(tokens, 2):,}" for tokens in certificate["tokens_per_worker"])
    balance = "equal to within a page" if certificate["balanced_within_a_page"] else "not equal to within a page"
    return (
        f"{'complete' if certificate['complete'] else 'NOT complete'}: {count(certificate['num_blocks'], 'block')}, "
        f"{certificate['owners_per_block']} owner each, {certificate['replicas']} replicas, {shares} tokens, {balance}"
    )
