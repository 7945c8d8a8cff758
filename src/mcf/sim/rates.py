"""A profile as the speeds that closed forms and policy `mars` take: one kind of node and link, those of the slowest."""

from collections.abc import Iterator

from mcf.cluster import SWITCH, Cluster
from mcf.mars import Rates
from mcf.sim.network import Link, speed
from mcf.sim.profile import Profile


def rates_of(profile: Profile, cluster: Cluster) -> Rates:
    """The least of each speed over the nodes and links of a cluster, and the largest latency and overhead."""

    def least(name: str) -> float:
        return float(profile.by_node(name, cluster.num_nodes).min())

    speeds = [speed(cluster, profile, link) for link in _links(cluster)]
    speeds += [(profile.link_rate(*edge), profile.link_latency(*edge)) for edge in profile.links]
    speeds = speeds or [(profile.link_bytes_s, profile.link_latency_s)]
    if profile.port_bytes_s is not None:
        speeds = [(min(rate, profile.port_bytes_s) * payload_part(profile), latency) for rate, latency in speeds]
    return Rates(
        P=least("flops_s"),
        P_attn=float(profile.attention_by_node(cluster.num_nodes).min()),
        BW=min(rate for rate, _ in speeds),
        tau=max(latency for _, latency in speeds),
        BW_mem=least("memory_bytes_s"),
        w=profile.weight_bytes,
        overhead=float(profile.by_node("step_overhead_s", cluster.num_nodes).max()),
    )


def payload_part(profile: Profile) -> float:
    """Payload bytes of a byte on a link: the rest are headers."""
    if profile.packet_bytes is None or profile.header_bytes is None:
        return 1.0
    return profile.packet_bytes / (profile.packet_bytes + profile.header_bytes)


def _links(cluster: Cluster) -> Iterator[Link]:
    """Ports of a switch, or the links of a graph."""
    for a in range(cluster.num_nodes):
        if cluster.topology.is_switch:
            yield from ((a, SWITCH), (SWITCH, a))
        else:
            yield from ((a, b) for b in cluster.topology.neighbours(a))
