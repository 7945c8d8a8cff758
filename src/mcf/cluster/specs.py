"""What the hardware is: nodes with their KV budgets, links with their speeds, and the cluster of both."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from mcf.cluster.topology import Edge, Topology
from mcf.errors import UserError

SWITCH = -1  # in a link of a switch: (a, SWITCH) is what node a sends, (SWITCH, b) what node b receives


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node. `kv_budget_bytes` bounds KV pages, KV slots and the decode reserve together; None is no bound."""

    kv_budget_bytes: int | None = None
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse a budget below one byte."""
        if self.kv_budget_bytes is not None and self.kv_budget_bytes < 1:
            raise UserError(f"got a KV budget of {self.kv_budget_bytes} bytes: expected at least 1, or none")


@dataclass(frozen=True, kw_only=True)
class LinkSpec:
    """The speed of a link: `rate_bits_s` in bits per second (None: not known) and `latency_s` in seconds (the same)."""

    rate_bits_s: float | None = None
    latency_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse a rate that is not above zero and a latency below zero."""
        if self.rate_bits_s is not None and not (0 < self.rate_bits_s < math.inf):
            raise UserError(f"got a link rate of {self.rate_bits_s} bit/s: expected more than 0, or none")
        if self.latency_s is not None and not 0 <= self.latency_s < math.inf:
            raise UserError(f"got a link latency of {self.latency_s} s: expected at least 0, or none")

    def or_else(self, other: "LinkSpec") -> "LinkSpec":
        """Give a link the numbers of another where its own are not known."""
        return LinkSpec(
            rate_bits_s=other.rate_bits_s if self.rate_bits_s is None else self.rate_bits_s,
            latency_s=other.latency_s if self.latency_s is None else self.latency_s,
        )


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The nodes, the links between them, the speed of every link (`link`) and of those that differ (`links`).

    On a switch, `links` are ports: (node, SWITCH) and (SWITCH, node).
    """

    nodes: tuple[NodeSpec, ...]
    topology: Topology
    link: LinkSpec = LinkSpec()
    links: Mapping[Edge, LinkSpec] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a number of nodes that the topology does not have, and speeds of links that it does not have."""
        if len(self.nodes) != self.topology.num_nodes:
            raise UserError(
                f"got {len(self.nodes)} node specs for a {self.topology.name} of {self.topology.num_nodes} nodes: "
                "expected one for each node"
            )
        for edge in self.links:
            if not self.has_link(*edge):
                raise UserError(f"got the speed of {edge[0]}>{edge[1]}: expected a link of {self.topology.name}")

    @classmethod
    def uniform(
        cls,
        spec: str | Topology,
        num_nodes: int,
        *,
        kv_budget_bytes: int | None = None,
        link: LinkSpec | None = None,
    ) -> "Cluster":
        """Build a cluster of `num_nodes` equal nodes on the topology named by spec.

        >>> Cluster.uniform("ring", 2, kv_budget_bytes=1024).kv_budgets
        (1024, 1024)
        """
        topology = spec if isinstance(spec, Topology) else Topology.parse(spec, num_nodes)
        nodes = (NodeSpec(kv_budget_bytes=kv_budget_bytes),) * num_nodes
        return cls(nodes=nodes, topology=topology, link=link or LinkSpec())

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.nodes)

    @property
    def kv_budgets(self) -> tuple[int | None, ...]:
        """The KV budget of each node in bytes, in node order; None is no bound."""
        return tuple(node.kv_budget_bytes for node in self.nodes)

    def has_link(self, a: int, b: int) -> bool:
        """Say whether a link can have a speed of its own: a link of the graph, or a port of the switch."""
        if self.topology.is_switch:
            return (a == SWITCH) != (b == SWITCH) and 0 <= max(a, b) < self.num_nodes
        return self.topology.has_link(a, b)

    def link_of(self, a: int, b: int) -> LinkSpec:
        """The speed of one link; a number is None where nobody said it."""
        return self.links[a, b].or_else(self.link) if (a, b) in self.links else self.link

    def with_links(self, links: Mapping[Edge, LinkSpec]) -> "Cluster":
        """The same cluster with the speeds of some links changed."""
        return replace(self, links={**self.links, **links})

    def slow_links(self, below: float = 0.5) -> list[Edge]:
        """Links whose rate is below a part of the usual one (`link`'s), slowest first."""
        usual = self.link.rate_bits_s
        rates = {edge: self.link_of(*edge).rate_bits_s for edge in self.links}
        slow = [(rate, edge) for edge, rate in rates.items() if rate and usual and rate < below * usual]
        return [edge for _, edge in sorted(slow)]

    def around(self, links: Iterable[Edge]) -> "Cluster":
        """The same cluster with a topology whose ways avoid some links: what a policy plans on after a link went down.

        A link without which some node could not reach another stays in use. Raises UserError for a switch, where there
        is no other way.
        """
        if self.topology.is_switch:
            raise UserError("got a switch to plan around a port: expected a topology with other ways")
        topology = self.topology
        for edge in links:
            try:
                topology = topology.without([edge])
            except UserError:
                if not topology.has_link(*edge):
                    raise
        speeds = {edge: spec for edge, spec in self.links.items() if topology.has_link(*edge)}
        return replace(self, topology=topology, links=speeds)
