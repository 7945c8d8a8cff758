"""The last states of a layer in a decode step on hardware of packets: up a tree of reduction units, the results to all.

As `mcf rtl sim --decode` runs it: when a node has attended its last KV head, a record of each of its query heads
leaves; a unit merges what its children and its own node send, head by head, and gives it out while it comes in; the
root's results go to all. Nodes end at the same time, so that the ports of those with most children take longest.
"""

from collections import Counter
from collections.abc import Sequence
from heapq import heappop

from mcf.cluster import SWITCH, Topology
from mcf.sim.events import Event
from mcf.sim.packets import Port
from mcf.sim.profile import Profile
from mcf.sim.routers import CHECK, GRANT, Routers, Train
from mcf.sim.ways import Tree, ports_of

STATE_NUMBER_BYTES = 2  # in block floating point; and a beat for exponent, sum and count


def states_s(topology: Topology, profile: Profile, *, num_heads: int, head_dim: int) -> float:
    """Seconds from the last record that has left its node's attention until all nodes have the last KV head's results.

    `num_heads` query heads of `head_dim` in one KV head; 0 on one node. Links have the profile's speed.
    """
    return 0.0 if topology.num_nodes == 1 else _States(topology, profile, num_heads, head_dim).run()


class _States:
    """One run. Packet numbers: head, and behind `num_heads` of them the results."""

    def __init__(self, topology: Topology, profile: Profile, num_heads: int, head_dim: int) -> None:
        self.topology, self.num_heads, self.port = topology, num_heads, Port(profile)
        self.numbers_s = self.port.header_s + head_dim * STATE_NUMBER_BYTES / self.port.rate
        self.packet_s = self.numbers_s + self.port.header_s
        self.merge_s, self.link_s = profile.merge_s or 0.0, profile.link_latency_s
        nodes = range(topology.num_nodes)
        self.root = 0 if topology.is_switch else min(nodes, key=lambda n: max(len(topology.route(n, m)) for m in nodes))
        self.parent = {b: a for a, b in self._edges(topology.num_trees - 1)}
        self.children = Counter(self.parent.values())
        self.arrived: Counter[tuple[int, int]] = Counter()
        self.end = 0.0
        self.heap: list[Event] = []
        self.routers = Routers(self.heap, self, self.port.header_s, self.port.buffer_s)

    def _edges(self, tree: int) -> Sequence[tuple[int, int]]:
        nodes = range(self.topology.num_nodes)
        if self.topology.is_switch:
            return [(self.root, node) for node in nodes if node != self.root]
        return self.topology.multicast(self.root, nodes, tree=tree)

    def run(self) -> float:
        """All records leave at the same time, one after the other."""
        for node in range(self.topology.num_nodes):
            is_leaf = not self.children[node]
            for head in range(self.num_heads):
                at = self.port.delivery_s / 2 + (head + 1) * self.numbers_s
                self._enter(node, head, self._up(node) if is_leaf else self._own(node), at)
        while self.heap:
            now, _, number = heappop(self.heap)
            self.routers.passed(number, now)
        return self.end - self.num_heads * self.packet_s

    def _enter(self, node: int, number: int, tree: Tree, at: float) -> None:
        self.routers.enter(node, Train(number, tree, self.packet_s, self.packet_s, is_last=True), at)

    # --- ways ---

    def _own(self, node: int) -> Tree:
        return Tree(root=node, outs={node: (node,)})

    def _up(self, node: int) -> Tree:
        to = self.parent[node]
        first = {node: (SWITCH,), SWITCH: (to,)} if self.topology.is_switch else {node: (to,)}
        return Tree(root=node, outs=first | {to: (to,)})

    def _down(self) -> Tree:
        outs: dict[int, tuple[int, ...]] = dict.fromkeys(range(self.topology.num_nodes), ())
        if self.topology.is_switch:
            outs |= {self.root: (SWITCH,), SWITCH: tuple(self.parent)}
        for a, b in () if self.topology.is_switch else self._edges(0):
            outs[a] += (b,)
        return Tree(root=self.root, outs={at: to if at == SWITCH else (*to, at) for at, to in outs.items()})

    # --- what the routers ask and say ---

    def ports(self, router: int) -> list[int | None]:
        """Whom a router's inputs are from."""
        return ports_of(self.topology, self.topology.num_nodes, router)

    def pace(self, a: int, b: int) -> float:
        """Links are as fast as ports."""
        return 1.0

    def onward(self, a: int, b: int) -> float:
        """From a start to the header at the next router."""
        return 0.0 if b == SWITCH else max(self.link_s - (CHECK + GRANT) * self.port.header_s, 0.0)

    def crosses(self, train: Train, a: int, b: int, at: float, seconds: float) -> None:
        """Nobody asks which links are used."""

    def delivered(self, number: int, node: int, at: float) -> None:
        """A result is there; or a state, and with the last one of its head a merged one goes on."""
        if number >= self.num_heads:
            self.end = max(self.end, at + self.port.delivery_s / 2)
            return
        self.arrived[node, number] += 1
        if self.arrived[node, number] > self.children[node]:
            out = at - self.packet_s + self.merge_s
            if node == self.root:
                self._enter(node, self.num_heads + number, self._down(), out)
            else:
                self._enter(node, number, self._up(node), out)
