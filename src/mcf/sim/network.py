"""Links under load: first come, first served; each hop stores the whole payload before it is passed on.

On a ring a link is a directed edge. On a switch every node has one port: a payload occupies the sender's port (`a`,
SWITCH) once, however many receivers it has (multicast is native), and then each receiver's port (SWITCH, `b`); the
switch cuts through, so that an idle one adds no time but the latency of the hop, and it keeps a payload for receivers
that have not posted yet.
"""

from mcf.cluster import Topology
from mcf.sim.profile import Profile

SWITCH = -1
Link = tuple[int, int]


class Network:
    """When each link is free again, and how long it has been busy."""

    def __init__(self, topology: Topology, profile: Profile) -> None:
        self.has_ports = topology.is_switch
        self.profile = profile
        self.ports = profile.by_node("link_bytes_s", topology.num_nodes).tolist()
        self.rates: dict[Link, float] = {}
        self.free: dict[Link, float] = {}
        self.busy: dict[Link, float] = {}

    def occupy(self, link: Link, now: float, num_bytes: int, rate: float) -> float:
        """Queue a payload behind what the link has already; returns when it starts."""
        took = num_bytes / rate
        start = max(now, self.free.get(link, 0.0))
        self.free[link] = start + took
        self.busy[link] = self.busy.get(link, 0.0) + took
        return start

    def arrival(self, start: float, num_bytes: int, a: int, b: int) -> float:
        """When a payload from a that starts on its link to b is whole at its end."""
        return start + num_bytes / self.rate(a, b) + self.profile.link_latency(a, b)

    def rate(self, a: int, b: int) -> float:
        """Bytes per second from a to b; on a switch no more than the receiver's port takes."""
        if (a, b) not in self.rates:
            found = self.profile.link_rate(a, b)
            self.rates[a, b] = min(found, self.ports[b]) if self.has_ports else found
        return self.rates[a, b]
