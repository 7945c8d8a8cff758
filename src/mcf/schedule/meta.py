"""What a schedule says about itself: sizes, budgets, topology. Values only, checked at birth."""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from mcf.errors import ScheduleError

PAGE_TOKENS = 64
INT4_BYTES = 0.5  # two elements to a byte
UNLIMITED = -1
MAX_NODES = 2**16
_LATER = ("kv_scale_bytes",)  # fields that the format took on later


@dataclass(frozen=True, kw_only=True)
class ScheduleMeta:
    """Sizes that every row of a schedule relies on.

    Tokens are prompt tokens; `kv_bytes` and `act_bytes` are bytes per element of KV and of queries; `kv_bytes` may be
    0.5 (INT4: a head's keys and values fill whole bytes); `kv_scale_bytes` those of the scales of one token's keys in
    one KV head, and as many of its values. `budgets` are bytes per node (`UNLIMITED` = no limit); `buffer_bytes` limits
    one stream's receive per layer (eq. 28; 0 = no limit).
    `shares` are the tokens per node that the end of prefill must show; empty means equal to within one page (V3).
    Raises ScheduleError when a number makes no sense.
    """

    policy: str
    num_nodes: int
    prompt_tokens: int
    chunk_tokens: int
    num_layers: int
    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    kv_bytes: float = 4
    act_bytes: int = 4
    page_tokens: int = PAGE_TOKENS
    stream_slots: int = 2
    max_new_tokens: int = 0
    buffer_bytes: int = 0
    topology: str = "switch"
    budgets: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    head_cuts: tuple[int, ...] = ()
    kv_scale_bytes: int = 0

    def __post_init__(self) -> None:
        for name in (
            *("num_nodes", "prompt_tokens", "chunk_tokens", "num_layers", "num_q_heads", "num_kv_heads", "head_dim"),
            *("act_bytes", "page_tokens", "stream_slots"),
        ):
            if not 1 <= getattr(self, name) < 2**31:
                raise ScheduleError(f"{name} is {getattr(self, name)}: expected at least 1 and less than 2**31")
        if self.kv_bytes != INT4_BYTES and not (self.kv_bytes == int(self.kv_bytes) and 1 <= self.kv_bytes < 2**31):
            raise ScheduleError(f"kv_bytes is {self.kv_bytes}: expected {INT4_BYTES} or a whole number of at least 1")
        for name in ("max_new_tokens", "buffer_bytes", "kv_scale_bytes"):
            if getattr(self, name) < 0:
                raise ScheduleError(f"{name} is {getattr(self, name)}: expected at least 0")
        if self.num_nodes > MAX_NODES:
            raise ScheduleError(f"num_nodes is {self.num_nodes}: expected at most {MAX_NODES}")
        if self.num_q_heads % self.num_kv_heads:
            raise ScheduleError(f"{self.num_q_heads} query heads do not divide into {self.num_kv_heads} KV head groups")
        if not self.budgets:
            object.__setattr__(self, "budgets", (UNLIMITED,) * self.num_nodes)
        if not self.head_cuts:
            object.__setattr__(self, "head_cuts", (0, self.num_kv_heads))
        if len(self.budgets) != self.num_nodes:
            raise ScheduleError(f"{len(self.budgets)} budgets for {self.num_nodes} nodes: expected one per node")
        if self.shares and len(self.shares) != self.num_nodes:
            raise ScheduleError(f"{len(self.shares)} shares for {self.num_nodes} nodes: expected one per node")
        cuts = self.head_cuts
        if cuts[0] != 0 or cuts[-1] != self.num_kv_heads or any(a >= b for a, b in pairwise(cuts)):
            raise ScheduleError(f"head cuts {cuts} must rise from 0 to {self.num_kv_heads}")

    @property
    def num_chunks(self) -> int:
        """Chunks of the prompt, C; generated tokens are chunk C."""
        return -(-self.prompt_tokens // self.chunk_tokens)

    @property
    def num_groups(self) -> int:
        """KV-head groups a block can be cut into."""
        return len(self.head_cuts) - 1

    @property
    def group_heads(self) -> int:
        """Query heads per KV head."""
        return self.num_q_heads // self.num_kv_heads

    def said(self) -> dict[str, Any]:
        """What the forms of a schedule write: every field, but later ones only where they say something.

        So schedules without a later field keep their bytes and their hash.
        """
        values = {field.name: (getattr(self, field.name), field.default) for field in fields(self)}
        return {name: value for name, (value, default) in values.items() if name not in _LATER or value != default}

    def kv_row_bytes(self, num_heads: int | None = None) -> int:
        """KV bytes of one token in one layer (eq. 1 without L), for `num_heads` KV heads (default all)."""
        heads = self.num_kv_heads if num_heads is None else num_heads
        return int(2 * heads * (self.head_dim * self.kv_bytes + self.kv_scale_bytes))

    @property
    def page_bytes(self) -> int:
        """Bytes of one page of one layer, all KV heads."""
        return self.page_tokens * self.kv_row_bytes()

    def generated_home(self, token: int) -> int:
        """Node that makes and owns generated token number `token` (semantics 7)."""
        return token // self.page_tokens % self.num_nodes

    def pages(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_tokens)
