"""What a policy is asked: the work, the model's shape and the cluster. Policies are pure functions of it."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from mcf.cluster import Cluster, NodeSpec
from mcf.errors import PromptError, UserError
from mcf.mars import Rates
from mcf.model import ModelShape
from mcf.schedule import UNLIMITED, ScheduleMeta

_COUNTS = (("chunk_tokens", 1), ("max_new_tokens", 0), ("stream_slots", 1), ("buffer_bytes", 0), ("drain_chunks", 0))


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """One request to plan.

    Tokens are prompt tokens; `chunk_tokens` counts over all nodes; `max_new_tokens` is the decode reserve. Budgets
    stand in `cluster`. `stream_slots` are layer slots per stream, `buffer_bytes` bounds one stream's receive per layer
    (eq. 28; 0: no bound). `alpha` is MARS's reuse bound (eq. 15): None takes the paper-faithful default, infinity turns
    it off. Over the last `drain_chunks` chunks `mars` and `mars-paper` retire their copies bit by bit, and fetch again
    what they still need; with 0 a copy stays for as long as some chunk reads it. `rates` are the speeds that policy
    `mars` weighs times by; without them it counts bytes.
    Raises PromptError for an empty prompt and UserError for other numbers that cannot be.
    """

    shape: ModelShape
    cluster: Cluster
    prompt_tokens: int
    chunk_tokens: int
    max_new_tokens: int = 0
    stream_slots: int = 2
    buffer_bytes: int = 0
    drain_chunks: int = 0
    alpha: float | Fraction | None = None
    rates: Rates | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no plan can have."""
        if self.prompt_tokens < 1:
            raise PromptError(f"got a prompt of {self.prompt_tokens} tokens: expected at least 1")
        for name, least in _COUNTS:
            if getattr(self, name) < least:
                raise UserError(f"got {name} = {getattr(self, name)}: expected at least {least}")
        if self.alpha is not None and (math.isnan(self.alpha) or self.alpha < 0):
            raise UserError(f"got alpha = {self.alpha}: expected a number of at least 0, or inf to turn it off")

    @property
    def num_nodes(self) -> int:
        """How many nodes share the prompt."""
        return self.cluster.num_nodes

    @property
    def is_limited(self) -> bool:
        """Say whether any node has a KV budget."""
        return any(budget is not None for budget in self.cluster.kv_budgets)

    @property
    def ahead(self) -> int:
        """Layers that history may be fetched early: one, where there is a slot for it."""
        return min(1, self.stream_slots - 1)

    def unlimited(self) -> "PlanRequest":
        """The same request on nodes without KV budgets."""
        return self.with_budget(None)

    def with_budget(self, kv_budget_bytes: int | None) -> "PlanRequest":
        """The same request with one KV budget for all nodes."""
        nodes = (NodeSpec(kv_budget_bytes=kv_budget_bytes),) * self.num_nodes
        return replace(self, cluster=replace(self.cluster, nodes=nodes))

    def meta(self, policy: str) -> ScheduleMeta:
        """What a schedule of this request says about itself."""
        shape = self.shape
        return ScheduleMeta(
            policy=policy,
            num_nodes=self.num_nodes,
            prompt_tokens=self.prompt_tokens,
            chunk_tokens=self.chunk_tokens,
            num_layers=shape.num_layers,
            num_q_heads=shape.num_q_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            kv_bytes=shape.kv_bytes,
            kv_scale_bytes=shape.kv_scale_bytes,
            act_bytes=shape.act_bytes,
            stream_slots=self.stream_slots,
            max_new_tokens=self.max_new_tokens,
            buffer_bytes=self.buffer_bytes,
            topology=self.cluster.topology.name,
            budgets=tuple(UNLIMITED if budget is None else budget for budget in self.cluster.kv_budgets),
        )
