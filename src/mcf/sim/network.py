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
        self.rate, self.latency = profile.link_bytes_s, profile.link_latency_s
        self.free: dict[Link, float] = {}
        self.busy: dict[Link, float] = {}

    def occupy(self, link: Link, now: float, num_bytes: int) -> float:
        """Queue a payload behind what the link has already; returns when it starts."""
        took = num_bytes / self.rate
        start = max(now, self.free.get(link, 0.0))
        self.free[link] = start + took
        self.busy[link] = self.busy.get(link, 0.0) + took
        return start

    def arrival(self, start: float, num_bytes: int) -> float:
        """When a payload that starts on a link is whole at its end."""
        return start + num_bytes / self.rate + self.latency
