"""Names and numbers to a verified plan: what `mcf plan` prints and what a run ships to its workers."""

from dataclasses import dataclass, replace

from mcf import policies
from mcf.cluster import Cluster
from mcf.errors import InfeasibleError, PromptError, UserError
from mcf.mars import Rates, auto_chunk
from mcf.model import ModelShape
from mcf.policies import PlanRequest
from mcf.schedule import Report, Schedule, digest, to_bytes, unicast, verify
from mcf.units import count

DEFAULT_POLICY = "mars-paper"
AUTO = "auto"
MOST_UNICAST = 64  # workers; beyond it a plan that nobody runs is judged as multicasts: plain sends are N^2 a chunk
# Tokens per worker that AUTO takes. Several workers without a budget: RUN_TOKENS, since kernels fill better than with
# 512 (benchmarks/scaling/results, row b). One worker, or a budget: what `auto_chunk` chooses from AUTO_TOKENS.
RUN_TOKENS = 1024
AUTO_TOKENS = (512, 256, 128, 64)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A schedule that has passed `verify`, with what the replay saw and the bytes that travel."""

    schedule: Schedule
    report: Report
    data: bytes
    sha256: str

    @property
    def chunk_tokens(self) -> int:
        """The chunk size that was settled."""
        return self.schedule.meta.chunk_tokens


def make_plan(
    shape: ModelShape,
    *,
    prompt_tokens: int,
    num_workers: int,
    policy: str = DEFAULT_POLICY,
    chunk_tokens: int | str = AUTO,
    kv_memory_bytes: int | None = None,
    max_tokens: int = 0,
    topology: str = "switch",
    cluster: Cluster | None = None,
    rates: Rates | None = None,
    is_for_a_run: bool = True,
) -> Plan:
    """Plan, lower and verify. `chunk_tokens` counts over all workers; AUTO takes 1,024 per worker; where there is one
    worker or a budget, 512, and less where the budget asks. A `cluster` of `num_workers` nodes takes the place of
    `kv_memory_bytes` and `topology`; policy `mars` decides by `rates` where they are known. A plan that is not
    `is_for_a_run` keeps its multicasts for many workers.

    Raises PromptError for a prompt that does not fit the window, InfeasibleError with the missing bytes,
    UnknownNameError.
    """
    check_workers(num_workers)
    check_window(shape, prompt_tokens, min_new_tokens=min(max_tokens, 1))
    where = cluster or Cluster.uniform(topology, num_workers, kv_budget_bytes=kv_memory_bytes)
    least = min((budget for budget in where.kv_budgets if budget is not None), default=None)
    sizes = _chunk_sizes(shape, chunk_tokens, prompt_tokens, num_workers, least, max_tokens)
    request = PlanRequest(
        shape=shape,
        cluster=where,
        prompt_tokens=prompt_tokens,
        chunk_tokens=sizes[0],
        max_new_tokens=max_tokens,
        rates=rates,
    )
    sched = _first_that_fits(policy, request, sizes)
    if is_for_a_run or num_workers <= MOST_UNICAST:
        sched = unicast(sched)
    report = verify(sched)
    data = to_bytes(sched)
    return Plan(schedule=sched, report=report, data=data, sha256=digest(data))


def check_workers(num_workers: int) -> None:
    """Refuse a number of workers that cannot be."""
    if not 1 <= num_workers <= 1024:
        raise UserError(f"got {num_workers} workers: expected 1 to 1024")


def check_policy(policy: str) -> None:
    """Refuse an unknown policy early; raises UnknownNameError with the nearest name."""
    policies.check_name(policy)


def check_least(shape: ModelShape, *, num_workers: int, policy: str, kv_memory_bytes: int | None) -> None:
    """Refuse what no prompt can mend, before anything is started: too little memory or too few workers for one token.

    A policy of another package is judged by the prompt itself: it may have its own idea of the shortest one. Raises
    InfeasibleError, and UserError for a policy that needs more workers.
    """
    if policy not in policies.NAMES:
        return
    request = PlanRequest(
        shape=shape,
        cluster=Cluster.uniform("switch", num_workers, kv_budget_bytes=kv_memory_bytes),
        prompt_tokens=1,
        chunk_tokens=1,
        max_new_tokens=1,
    )
    try:
        policies.plan(policy, request)
    except InfeasibleError as error:
        raise InfeasibleError(f"{error} (that is for a prompt of 1 token)", missing_bytes=error.missing_bytes) from None


def check_window(shape: ModelShape, prompt_tokens: int, *, min_new_tokens: int = 1) -> None:
    """Refuse an empty prompt and one that leaves no place for `min_new_tokens` of an answer: never cut silently."""
    if prompt_tokens < 1:
        raise PromptError("got an empty prompt: expected at least one token; give some text")
    excess = prompt_tokens + min_new_tokens - shape.max_positions
    if excess > 0:
        raise PromptError(
            f"got a prompt of {count(prompt_tokens, 'token')}: {shape.name or 'the model'} has a window of "
            f"{shape.max_positions}, prompt and answer together; shorten the prompt by at least "
            f"{count(excess, 'token')}"
        )


def fixed_chunk(chunk_tokens: int | str) -> int | None:
    """Return the chunk size that was asked for, None for AUTO. Raises UserError for anything else."""
    if chunk_tokens == AUTO:
        return None
    if not isinstance(chunk_tokens, int):
        raise UserError(f"got chunk_tokens {chunk_tokens!r}: expected a number of tokens or {AUTO!r}")
    if chunk_tokens < 1:
        raise UserError(f"got a chunk of {chunk_tokens} tokens: expected at least 1, or {AUTO}")
    return chunk_tokens


def _first_that_fits(policy: str, request: PlanRequest, sizes: list[int]) -> Schedule:
    """Plan with the first chunk size whose plan the budgets hold; raises the error of the size that misses least."""
    misses = []
    for size in sizes:
        try:
            return policies.plan(policy, replace(request, chunk_tokens=size))
        except InfeasibleError as error:
            misses.append(error)
    raise min(misses, key=lambda error: error.missing_bytes)


def _chunk_sizes(
    shape: ModelShape,
    chunk_tokens: int | str,
    prompt_tokens: int,
    num_workers: int,
    kv_memory_bytes: int | None,
    max_tokens: int,
) -> list[int]:
    """Chunk sizes to try, in order: what was asked for; within a budget an estimate first, which knows no policy."""
    if (fixed := fixed_chunk(chunk_tokens)) is not None:
        return [fixed]
    if num_workers > 1 and kv_memory_bytes is None:
        return [min(RUN_TOKENS * num_workers, prompt_tokens)]
    first = auto_chunk(
        N=num_workers,
        S=prompt_tokens,
        L=shape.num_layers,
        m_l=shape.kv_token_layer_bytes,
        S_node=kv_memory_bytes,
        max_new_tokens=max_tokens,
    )
    sizes = {min(t * num_workers, prompt_tokens) for t in (RUN_TOKENS, *AUTO_TOKENS)}
    return sorted(sizes, key=lambda size: (size != first, size > first, -size))
