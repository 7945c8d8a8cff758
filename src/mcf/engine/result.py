"""What a request gives back: text, ids, times, bytes, peaks and the certificate; and the stable JSON object of it."""

from dataclasses import dataclass, field
from typing import Any

from mcf.errors import RunError
from mcf.schedule import Schedule
from mcf.schedule.kv import STATE_NAMES, VALID
from mcf.trace import Trace

PURPOSES = ("new_kv", "fetched_kv", "query", "state")


@dataclass(frozen=True, kw_only=True)
class Result:
    """One finished request.

    `ttft_s` runs from the call of `generate` to the first token (planning and tokenising included, loading not).
    `breakdown` is that time on the worker that finished prefill last: compute + exposed communication + other = ttft;
    communication may overlap compute. `token_s` are the seconds of each token after the first. `bytes` are payload
    bytes sent, counted at the transport, prefill and decode together. `peak_kv_bytes` per worker is the pool's
    high-water mark. `replica_factor` per chunk: copies held per token seen so far, counted in the workers' directories.
    `finish_reason` is `stop` or `length`.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    ttft_s: float
    decode_s: float
    token_s: list[float]
    breakdown: dict[str, float]
    bytes: dict[str, int]
    peak_kv_bytes: list[int]
    kv_budget_bytes: int | None
    replica_factor: list[float]
    certificate: dict[str, Any]
    policy: str
    workers: int
    chunk_tokens: int
    finish_reason: str
    versions: dict[str, str]
    trace: Trace = field(repr=False, compare=False)
    schedule: Schedule = field(repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The documented, stable object that `mcf run --json` prints (docs/json.md)."""
        return {name: value for name, value in vars(self).items() if name not in ("trace", "schedule")}


def certify(
    blocks: list[list[list[int]]], *, num_tokens: int, head_cuts: tuple[int, ...], page_tokens: int
) -> dict[str, Any]:
    """Judge the layout from the workers' own directories: entries [chunk, maker, group, state, tokens] of each worker.

    Complete means: every prompt token's KV, for each head group between `head_cuts`, lies on exactly one worker, valid.
    Raises RunError when it is not, because decode from an incomplete layout would be wrong.
    """
    seen: dict[tuple[int, int, int], int] = {}
    shares = []
    for rank, entries in enumerate(blocks):
        shares.append(sum(tokens * (head_cuts[group + 1] - head_cuts[group]) for *_, group, _, tokens in entries))
        for chunk, maker, group, state, _ in entries:
            if state != VALID:
                raise RunError(f"worker {rank} ends prefill with a block that is {STATE_NAMES[state]}: expected valid")
            if (chunk, maker, group) in seen:
                owner = seen[chunk, maker, group]
                raise RunError(
                    f"block (chunk {chunk}, maker {maker}) lies on workers {owner} and {rank}: expected one owner"
                )
            seen[chunk, maker, group] = rank
    num_heads = head_cuts[-1]
    if sum(shares) != num_tokens * num_heads:
        raise RunError(f"the workers hold {sum(shares) / num_heads:g} tokens after prefill: expected {num_tokens}")
    spread = max(shares) - min(shares)
    return {
        "complete": True,
        "num_blocks": len(seen),
        "owners_per_block": 1,
        "replicas": 0,
        "tokens_per_worker": [s / num_heads if s % num_heads else s // num_heads for s in shares],
        "page_tokens": page_tokens,
        "balanced_within_a_page": spread <= page_tokens * num_heads,
    }
