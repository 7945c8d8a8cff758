"""What the hardware is: nodes with their KV budgets, links with their speeds, and the cluster of both."""

import math
from dataclasses import dataclass

from mcf.cluster.topology import Topology
from mcf.errors import UserError


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node. `kv_budget_bytes` bounds KV pages, KV slots and the decode reserve together; None is no bound."""

    kv_budget_bytes: int | None = None

    def __post_init__(self) -> None:
        """Refuse a budget below one byte."""
        if self.kv_budget_bytes is not None and self.kv_budget_bytes < 1:
            raise UserError(f"got a KV budget of {self.kv_budget_bytes} bytes: expected at least 1, or none")


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """The speed of every link: `rate_bits_s` in bits per second (None: not known) and `latency_s` in seconds."""

    rate_bits_s: float | None = None
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse a rate that is not above zero and a latency below zero."""
        if self.rate_bits_s is not None and not (0 < self.rate_bits_s < math.inf):
            raise UserError(f"got a link rate of {self.rate_bits_s} bit/s: expected more than 0, or none")
        if not 0 <= self.latency_s < math.inf:
            raise UserError(f"got a link latency of {self.latency_s} s: expected at least 0")


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes, the links between them and the speed of the links."""

    nodes: tuple[NodeSpec, ...]
    topology: Topology
    link: LinkSpec = LinkSpec()

    def __post_init__(self) -> None:
        """Refuse a number of nodes that the topology does not have."""
        if len(self.nodes) != self.topology.num_nodes:
            raise UserError(
                f"got {len(self.nodes)} node specs for a {self.topology.name} of {self.topology.num_nodes} nodes: "
                "expected one for each node"
            )

    @classmethod
    def uniform(cls, spec: str, num_nodes: int, *, kv_budget_bytes: int | None = None) -> "Cluster":
        """Build a cluster of `num_nodes` equal nodes on the topology named by spec.

        >>> Cluster.uniform("ring", 2, kv_budget_bytes=1024).kv_budgets
        (1024, 1024)
        """
        topology = Topology.parse(spec, num_nodes)
        return cls(nodes=(NodeSpec(kv_budget_bytes=kv_budget_bytes),) * num_nodes, topology=topology)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @property
    def kv_budgets(self) -> tuple[int | None, ...]:
        """The KV budget of each node in bytes, in node order; None is no bound."""
        return tuple(node.kv_budget_bytes for node in self.nodes)
