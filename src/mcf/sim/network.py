"""Links under load: what the running layer needs goes first, and interrupts what is fetched ahead.

On a graph a link is a directed edge. On a switch every node has one port: a payload occupies the sender's port (`a`,
SWITCH) once, however many receivers it has (multicast is native), and then each receiver's port (SWITCH, `b`); the
switch cuts through, so that an idle one adds no time but the latency of the hop, and it keeps a payload for receivers
that have not posted yet. Each hop stores the whole payload before it is passed on.

Two classes share a line. Urgent payloads are served first come, first served. A payload that is fetched ahead moves
whenever no urgent one does, and goes on where it stopped (preemptive resume); such payloads are served in turn too.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mcf.cluster import SWITCH, Cluster, Topology
from mcf.errors import UserError
from mcf.schedule import Schedule
from mcf.sim.fold import Turn
from mcf.sim.profile import Profile

Link = tuple[int, int]
Job = tuple[int, float]  # what a line carries: an instance and a payload's bytes


@dataclass(frozen=True, kw_only=True)
class LinkChange:
    """From `at_s` seconds on, a link carries `factor` of its rate: 0 is a dead link. A started payload keeps its speed.

    On a switch a link is a port, (node, SWITCH) or (SWITCH, node).
    """

    link: Link
    factor: float
    at_s: float = 0.0

    def __post_init__(self) -> None:
        """Refuse factors and times that cannot be."""
        if not 0 <= self.factor <= 1 or not 0 <= self.at_s < math.inf:
            raise UserError(
                f"got a link at {self.factor} times its rate from {self.at_s} s on: expected a factor from 0 to 1, and "
                "a time of at least 0"
            )


class Line:
    """One link or port: when it is free for urgent payloads, and what it does besides."""

    __slots__ = ("began", "busy", "changes", "due", "free", "latency", "link", "low", "number", "pace", "queue")

    def __init__(
        self, number: int, link: Link, pace: float, latency: float, changes: list[tuple[float, float]]
    ) -> None:
        self.number, self.link, self.pace, self.latency = number, link, pace, latency
        self.changes = changes
        self.free = self.busy = 0.0
        self.low: Job | None = None  # what is fetched ahead and under way; it began, and is due, at:
        self.began = self.due = 0.0
        self.queue: deque[Job] = deque()

    def took(self, num_bytes: float, at: float) -> float:
        """Seconds that a payload occupies the line when it starts at a time; infinity on a dead one."""
        factor = 1.0
        for since, value in self.changes:
            if since <= at:
                factor = value
        return num_bytes * self.pace / factor if factor else math.inf

    def urgent(self, now: float, num_bytes: float) -> tuple[float, float]:
        """Queue an urgent payload; returns when it starts and when its last byte has left."""
        start = self.free if self.free > now else now
        took = self.took(num_bytes, start) if self.changes else num_bytes * self.pace
        self.free = end = start + took
        self.busy += took
        if self.low is not None:
            self.due += took
        return start, end

    def begin(self, job: Job, now: float) -> None:
        """Start a payload that is fetched ahead."""
        self.low, self.began = job, max(now, self.free)
        took = self.took(job[1], self.began)
        self.due = self.began + took
        self.busy += took


class Network:
    """The lines of a cluster, made when they are first used; with a turn, node 0's stand for everybody's."""

    def __init__(
        self, cluster: Cluster, profile: Profile, changes: Iterable[LinkChange] = (), turn: Turn | None = None
    ) -> None:
        self.has_ports = cluster.topology.is_switch
        self.cluster, self.profile, self.turn = cluster, profile, turn
        self._pairs: dict[Link, tuple[float, float]] | None = {} if self.has_ports and profile.links else None
        self.lines: list[Line] = []
        self._known: dict[Link, Line] = {}
        self._changes: dict[Link, list[tuple[float, float]]] = {}
        for change in sorted(changes, key=lambda change: change.at_s):
            if not cluster.has_link(*change.link):
                a, b = change.link
                raise UserError(f"got a change of {a}>{b}: expected a link of {cluster.topology.name}")
            self._changes.setdefault(change.link, []).append((change.at_s, change.factor))

    def line(self, a: int, b: int) -> Line:
        """The line of a link or of a port."""
        known = self._known.get((a, b))
        if known is None and self.turn is not None and self.turn.line((a, b)) != (a, b):
            known = self._known[a, b] = self.line(*self.turn.line((a, b)))
        if known is None:
            rate, latency = speed(self.cluster, self.profile, (a, b))
            known = Line(len(self.lines), (a, b), 1 / rate, latency, self._changes.get((a, b), []))
            self._known[a, b] = known
            self.lines.append(known)
        return known

    def into(self, a: int, b: int, num_bytes: int) -> tuple[Line, float, float]:
        """Where a payload of node a enters node b of a switch: port, bytes, latency.

        The bytes are more where the pair is slower than the port.
        """
        line = self.line(SWITCH, b)
        if self._pairs is None:
            return line, num_bytes, line.latency
        if (a, b) not in self._pairs:
            spec = self.cluster.link_of(SWITCH, b)
            latency = self.profile.link_latency(a, b) if spec.latency_s is None else spec.latency_s
            self._pairs[a, b] = max(1.0, 1 / (line.pace * self.profile.link_rate(a, b))), latency
        weight, latency = self._pairs[a, b]
        return line, num_bytes * weight, latency

    @property
    def busy(self) -> dict[Link, float]:
        """Seconds that each line was occupied."""
        return {line.link: line.busy for line in self.lines}

    def dead(self) -> list[Link]:
        """Lines on which a payload waits for ever."""
        return sorted(line.link for line in self.lines if math.inf in (line.free, line.due))


def speed(cluster: Cluster, profile: Profile, link: Link) -> tuple[float, float]:
    """Bytes per second and latency of a link: the cluster's own numbers, else the profile's."""
    spec = cluster.link_of(*link)
    if SWITCH in link:
        rate, latency = profile.port_rate(max(link)), profile.link_latency_s
    else:
        rate, latency = profile.link_rate(*link), profile.link_latency(*link)
    rate = rate if spec.rate_bits_s is None else spec.rate_bits_s / 8
    return rate, latency if spec.latency_s is None else spec.latency_s


def used_cluster(sched: Schedule, cluster: Cluster | None) -> Cluster:
    """The cluster that a schedule runs on. Raises UserError for one that lacks nodes or links of the schedule."""
    num_nodes = sched.meta.num_nodes
    if cluster is None:
        return Cluster.uniform(sched.meta.topology, num_nodes)
    if cluster.num_nodes != num_nodes:
        raise UserError(f"got a cluster of {cluster.num_nodes} nodes: expected {num_nodes}, as in the schedule")
    planned, there = Topology.parse(sched.meta.topology, num_nodes), cluster.topology
    if planned.is_switch != there.is_switch:
        raise UserError(f"got a cluster with topology {there.name}: expected {planned.name}, as in the schedule")
    if planned.name != there.name and not planned.links <= there.links:
        raise UserError(f"got a cluster with topology {there.name}: expected the links of {planned.name}")
    return cluster
