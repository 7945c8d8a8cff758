"""What the hardware is: nodes, links, topologies and the routes over them. Nothing here says what to do."""

from mcf.cluster.facts import Facts, disjoint_ways, facts
from mcf.cluster.read import load_cluster, parse_cluster, read_cluster
from mcf.cluster.specs import SWITCH, Cluster, LinkSpec, NodeSpec
from mcf.cluster.topology import NAMES, Edge, Topology
from mcf.cluster.trees import replanned, tree_numbers

__all__ = [
    "NAMES",
    "SWITCH",
    "Cluster",
    "Edge",
    "Facts",
    "LinkSpec",
    "NodeSpec",
    "Topology",
    "disjoint_ways",
    "facts",
    "load_cluster",
    "parse_cluster",
    "read_cluster",
    "replanned",
    "tree_numbers",
]
