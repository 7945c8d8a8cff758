"""Measure one configuration: rates first, then the same request again and again; the documented JSON object of it."""

import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from mcf.bench.bound import decode_bound_s, decode_bytes, prefill_bound_s, prefill_flops
from mcf.bench.environment import environment, load
from mcf.bench.memory import base_bytes, stated
from mcf.bench.settings import PREFILL, Settings
from mcf.bench.spread import spread
from mcf.engine.llm import LLM
from mcf.engine.planner import check_window
from mcf.engine.result import Result
from mcf.schedule.steps import DECODE

FORMAT = "mcf-bench 1"
OnRound = Callable[[str, float], None]
_PARTS = ("compute_s", "communication_s", "exposed_communication_s", "other_s")


def measure(
    settings: Settings,
    *,
    load_model: Callable[..., LLM],
    command: Sequence[str],
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Load, measure and unload; returns the object of docs/json.md. `load_model` is `mcf.load` or a stand-in.

    `on_round(label, seconds)` hears of each round. Raises UserError and RunError kinds.
    """
    where = environment(command)

    def before(llm: LLM) -> None:
        check_window(llm.shape, settings.prompt_tokens, min_new_tokens=settings.max_tokens)

    with load_model(
        settings.model,
        workers=settings.workers,
        policy=settings.policy,
        kv_memory=settings.kv_memory_bytes,
        chunk_tokens=settings.chunk_tokens,
        dtype=settings.dtype,
        threads=settings.threads,
        before_weights=before,
    ) as llm:
        found = run(llm, settings, on_round or _ignore)
    return {"format": FORMAT, "settings": settings.to_json(), "environment": {**where, "load_after": load()}, **found}


def run(llm: LLM, settings: Settings, on_round: OnRound) -> dict[str, Any]:
    """Measure on a loaded model: everything but settings and environment."""
    base = base_bytes(llm)
    rates = llm.measure("rates", dtype=settings.dtype)
    bound = _bound(llm, settings, rates)
    llm.measure("new_peak")
    results = list(_rounds(llm, settings, on_round))
    peak = llm.measure("memory")
    times = spread([_seconds(settings, result) for result in results])
    num_tokens = settings.prompt_tokens if settings.kind == PREFILL else 1
    plan = llm.plan(settings.prompt_tokens, settings.max_tokens)
    return {
        "kind": settings.kind,
        "chunk_tokens": results[-1].chunk_tokens,
        "bound": bound,
        "seconds": times,
        "tokens_per_s": num_tokens / times["median"],
        "achieved_of_bound": bound["seconds"] / times["median"],
        "breakdown": _breakdown(settings, results),
        "memory": stated(llm, plan, base, peak),
        "bytes": results[-1].bytes,
    }


def random_prompt(vocab_size: int, num_tokens: int, seed: int) -> list[int]:
    """Token ids drawn evenly: what they say does not change how long they take."""
    return random.Random(seed).choices(range(vocab_size), k=num_tokens)


def _rounds(llm: LLM, settings: Settings, on_round: OnRound) -> Any:
    ids = random_prompt(llm.shape.vocab_size, settings.prompt_tokens, settings.seed)
    for index in range(settings.warmup + settings.rounds):
        result = llm.generate(ids, max_tokens=settings.max_tokens, ignore_eos=True)
        is_warmup = index < settings.warmup
        on_round("warm-up" if is_warmup else f"round {index - settings.warmup + 1}", _seconds(settings, result))
        if not is_warmup:
            yield result


def _seconds(settings: Settings, result: Result) -> float:
    """The time to first token, or the median time of a token after it."""
    return result.ttft_s if settings.kind == PREFILL else statistics.median(result.token_s)


def _bound(llm: LLM, settings: Settings, rates: list[dict[str, Any]]) -> dict[str, Any]:
    flops_s, read_bytes_s = ([worker[name] for worker in rates] for name in ("flops_s", "read_bytes_s"))
    num_tokens = settings.prompt_tokens
    if settings.kind == PREFILL:
        work = {
            "flops": prefill_flops(llm.shape, num_tokens),
            "seconds": prefill_bound_s(llm.shape, num_tokens, flops_s),
        }
    else:
        num_tokens += settings.max_tokens // 2
        work = {
            "bytes_per_worker": decode_bytes(llm.shape, num_tokens, settings.workers),
            "seconds": decode_bound_s(llm.shape, num_tokens, read_bytes_s),
        }
    return {**work, "flops_s": flops_s, "read_bytes_s": read_bytes_s}


def _breakdown(settings: Settings, results: list[Result]) -> dict[str, float]:
    """Medians over the rounds, per part; in decode of worker 0, per token."""
    rows = [result.breakdown if settings.kind == PREFILL else _decode_parts(result) for result in results]
    return {part: statistics.median(row[part] for row in rows) for part in _PARTS}


def _decode_parts(result: Result) -> dict[str, float]:
    """How worker 0 spent an average token of the decode phase; the head's part is in `other_s`."""
    begin, end = result.trace.interval(0, DECODE)
    parts = result.trace.breakdown(0, begin, end)
    head_s = max(0.0, sum(result.token_s) - (end - begin))
    return {name: (parts[name] + (head_s if name == "other_s" else 0.0)) / len(result.token_s) for name in _PARTS}


def _ignore(label: str, seconds: float) -> None:
    pass
