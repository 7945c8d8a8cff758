"""What the hardware is: nodes, links, topologies and the routes over them. Nothing here says what to do."""

from mcf.cluster.specs import Cluster, LinkSpec, NodeSpec
from mcf.cluster.topology import Edge, Topology

__all__ = ["Cluster", "Edge", "LinkSpec", "NodeSpec", "Topology"]
