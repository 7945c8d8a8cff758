"""The product in one process: every node a thread over one shared model, transfers through a `LocalWorld`.

Nothing is left out but processes and sockets: the model's own layers, page pools, runtime and transport do their work.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mcf.dist.hf import LoadedModel
from mcf.dist.local import LocalTransport, LocalWorld
from mcf.dist.node import Node
from mcf.dist.transport import Counters
from mcf.schedule import Report, Schedule
from mcf.schedule.steps import PURPOSE_NAMES
from mcf.trace import Trace

T = TypeVar("T")
_TIMEOUT_S = 60.0


class Planned(Protocol):
    """A schedule and what `verify` said of it, such as `mcf.engine.planner.Plan`."""

    @property
    def schedule(self) -> Schedule:
        """The schedule, without multicast."""

    @property
    def report(self) -> Report:
        """What `verify` returned for it."""


@dataclass(frozen=True, kw_only=True)
class LocalResult:
    """What a run gave, and what its parts counted; lists over nodes are in rank order.

    `ids` [n] are the greedy ids and `logits` [n, V] float32 what they were picked from, along the `forced` ids where
    there are any. `counters` are bytes per (src, dst, purpose) at each node's transport, sends and receives. `peaks`
    are the pools' high-water marks in bytes, `num_spills` the buffers allocated beside them. `certificate` holds each
    node's own directory after convergence.
    """

    ids: list[int]
    logits: NDArray[np.float32]
    counters: list[Counters]
    peaks: list[int]
    certificate: list[list[dict[str, int]]]
    num_spills: list[int]
    traces: list[Trace] = field(repr=False)

    def sent_bytes(self) -> dict[str, int]:
        """Payload bytes by purpose, counted where they were sent."""
        return self._bytes(0)

    def received_bytes(self) -> dict[str, int]:
        """Payload bytes by purpose, counted where they were received."""
        return self._bytes(1)

    def _bytes(self, end: int) -> dict[str, int]:
        totals = dict.fromkeys(PURPOSE_NAMES.values(), 0)
        for rank, counters in enumerate(self.counters):
            for key, num_bytes in counters.items():
                if key[end] == rank:
                    totals[PURPOSE_NAMES[key[2]]] += num_bytes
        return totals


def run_local(
    model: LoadedModel,
    plan: Planned,
    token_ids: Sequence[int],
    *,
    max_new_tokens: int,
    forced: Sequence[int] | None = None,
    seed: int | None = None,
    poison: bool = True,
) -> LocalResult:
    """Run one request, a thread for each node of the plan: prefill, convergence, greedy decode without an end token.

    `max_new_tokens`, at least 1, ids are picked, at most as many as the plan has room for. `forced` ids are fed to the
    model in place of the picked ones (teacher forcing; at least `max_new_tokens` - 1 of them). `seed` delays and
    reorders transfers (see `LocalWorld`); `poison` fills the pools with NaN first. Raises what a node raises first.
    """
    world = LocalWorld(plan.schedule.meta.num_nodes, seed=seed, timeout_s=_TIMEOUT_S)
    team = _Team(model, plan, world, math.nan if poison else None)
    try:
        return team.run(token_ids, max_new_tokens, forced)
    finally:
        team.close()


class _Team:
    """The nodes of one request and the phases that they take together."""

    def __init__(self, model: LoadedModel, plan: Planned, world: LocalWorld, fill: float | None) -> None:
        self.world = world
        report = plan.report
        self.nodes = [
            Node(
                model,
                plan.schedule,
                transport,
                page_bytes=report.page_bytes[rank],
                slot_bytes=report.slot_bytes[rank],
                fill=fill,
            )
            for rank, transport in enumerate(world.transports)
        ]

    def run(self, token_ids: Sequence[int], num_new: int, forced: Sequence[int] | None) -> LocalResult:
        found = [logits for logits in self._all(lambda node: node.prefill(token_ids)) if logits is not None]
        assert len(found) == 1, f"{len(found)} nodes have the first logits"
        certificate = self._all(Node.converge)
        rows = [found[0]]
        while len(rows) < num_new:
            rows.append(self._decode(rows[-1], len(rows) - 1, forced))
        return LocalResult(
            ids=[int(row.argmax()) for row in rows],
            logits=np.stack([row.numpy() for row in rows]),
            counters=[dict(transport.counters) for transport in self.world.transports],
            peaks=[node.pool.peak_bytes for node in self.nodes],
            num_spills=[node.pool.num_spills for node in self.nodes],
            certificate=certificate,
            traces=[node.trace() for node in self.nodes],
        )

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def _decode(self, logits: Tensor, index: int, forced: Sequence[int] | None) -> Tensor:
        token = int(logits.argmax()) if forced is None else forced[index]
        return self._all(lambda node: node.decode(token, index))[0]

    def _all(self, deed: Callable[[Node], T]) -> list[T]:
        """Have every node do the same, each in its thread."""
        return self.world.run(lambda transport: deed(self._node(transport)))

    def _node(self, transport: LocalTransport) -> Node:
        return self.nodes[transport.rank]


__all__ = ["LocalResult", "Planned", "run_local"]
