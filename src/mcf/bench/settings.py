"""What is measured: the settings of `mcf bench`, checked."""

from dataclasses import asdict, dataclass
from typing import Any

from mcf.engine.planner import check_policy, check_workers
from mcf.errors import UserError

PREFILL, DECODE = "prefill", "decode"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One measurement: `rounds` requests of the same random prompt after `warmup` that do not count."""

    kind: str
    model: str
    prompt_tokens: int
    max_tokens: int
    workers: int
    policy: str
    chunk_tokens: int | str
    kv_memory_bytes: int | None
    dtype: str
    threads: int
    rounds: int
    warmup: int
    seed: int

    def __post_init__(self) -> None:
        """Refuse what cannot be measured. Raises UserError."""
        check_policy(self.policy)
        check_workers(self.workers)
        if self.threads < 1:
            raise UserError(f"got {self.threads} threads: expected at least 1 per worker")
        if self.rounds < 1 or self.warmup < 0:
            raise UserError(
                f"got {self.rounds} rounds and {self.warmup} to warm up: expected at least 1 and at least 0"
            )
        if self.kind == DECODE and self.max_tokens < 2:
            raise UserError(f"got {self.max_tokens} tokens to decode: expected at least 2, the first is prefill's")

    def to_json(self) -> dict[str, Any]:
        """All of them as plain values."""
        return asdict(self)
