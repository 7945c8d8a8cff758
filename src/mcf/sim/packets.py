"""Packets under way: what a node orders, hands over and receives; between nodes they are `sim.routers`' packets.

This is `sim.transfers` for hardware whose profile says `port_bytes_s`: all that a node sends leaves it by one port, all
that it receives enters it by one. A send is a row of packets, each with a header, that go down the whole tree of their
receivers at once; they start when all receivers have posted (where receivers may wait for each other, each gets packets
of its own). Posting is a packet too: a header to the sender. What a node sends leaves in the order in which it was
handed over: it is ordered by descriptors, fetched, stored whole packet by packet, and sent.
"""

import math
from array import array
from collections.abc import Sequence
from heapq import heappush

import numpy as np

from mcf.cluster import SWITCH
from mcf.schedule.schedule import Array
from mcf.schedule.steps import DECODE, RECV
from mcf.sim.events import DONE, ENTER, ENTER_AHEAD, LEAVE, Event
from mcf.sim.messages import num_descriptors, num_packets
from mcf.sim.network import Link, Network
from mcf.sim.profile import Profile
from mcf.sim.program import Program
from mcf.sim.routers import CHECK, GRANT, Routers, Train
from mcf.sim.ways import Tree, Ways, has_circle, ports_of

BATCH = 16  # descriptors that are written before the network half hears of them
VISITS = 400_000  # of packets at routers; where there were more, several packets of a payload move as one
TRAINS = 4  # but a payload is at least so many, if it has as many packets


class Flow:
    """A payload on its way to the receives of one group, or the posting of a receive (`send` is -1)."""

    __slots__ = ("handed", "hops", "node", "recvs", "send", "tree")

    def __init__(self, send: int, node: int, tree: Tree, recvs: dict[int, int]) -> None:
        self.send, self.node, self.tree, self.recvs = send, node, tree, recvs
        self.handed = 0.0  # when the first descriptor is written
        self.hops: dict[Link, tuple[float, float]] = {}


class PacketTransfers:
    """Deliveries of all sends. The interface is that of `Transfers`."""

    def __init__(self, program: Program, network: Network, heap: list[Event]) -> None:
        self.program, self.network, self.heap, self.ticks = program, network, heap, program.num_ticks
        steps = program.sched.steps
        self.port = port = Port(network.profile)
        self.ref: list[int] = steps["ref"].tolist()
        self.size: list[int] = program.sched.row_bytes.tolist()
        self.chunk: list[int] = steps["chunk"].tolist()
        self.hops = array("d")  # send instance, from, to, start, end; and the next
        recvs = np.flatnonzero((steps["kind"] == RECV) & (steps["stage"] != DECODE)).tolist()
        topology = network.cluster.topology
        self.ways = Ways(program, topology, recvs, self.ref)
        self.started, self.posted = (bytearray(len(steps) * self.ticks) for _ in range(2))
        counts = np.bincount([self.ref[recv] for recv in recvs], minlength=len(steps))
        self.undelivered: list[int] = np.repeat(counts, self.ticks).tolist()
        nodes = range(program.sched.meta.num_nodes)
        self.flows: list[Flow] = []
        self.free = [0.0 for _ in nodes]  # when a node's processor can write the next descriptor
        self.fetched = [0.0 for _ in nodes]  # when all that a node has handed over has been fetched
        self.counted: dict[int, tuple[int, int]] = {}
        self.thin = max(self._num_visits() / VISITS, 1.0)
        room = math.inf if has_circle(self.ways.all_trees()) else port.buffer_s
        self.routers = Routers(heap, self, port.header_s, room)
        self.entered: Array = np.zeros((program.sched.meta.num_chunks, len(nodes)))  # seconds at the receivers' ports

    def _num_visits(self) -> int:
        """How often a packet passes a router, in all."""
        groups = self.ways.groups.items()
        visits = sum(self._counts(row)[1] * len(self.ways.tree(group).outs) for row, mine in groups for group in mine)
        return visits * self.ticks

    # --- what the machine says ---

    def post(self, inst: int, now: float) -> None:
        """A receive is posted: its sender hears of it by a header."""
        recv = inst // self.ticks
        sender = self.program.node[self.ref[recv]]
        self.flows.append(Flow(-1, self.program.node[recv], self.ways.back(recv), {sender: inst}))
        self._hand_over(len(self.flows) - 1, now, 1)

    def send(self, inst: int, now: float) -> None:
        """A send starts: its node has the payload."""
        self.started[inst] = 1
        row, tick = divmod(inst, self.ticks)
        for group in self.ways.groups[row]:
            self._start_if_all(group, tick, now)

    def enter(self, inst: int, now: float) -> None:
        """A sender hears of a posted receive; or a payload's turn to be handed over, behind what is posted just now."""
        if inst >= len(self.posted):
            number = inst - len(self.posted)
            self._hand_over(number, now, self._counts(self.flows[number].send // self.ticks)[0])
            return
        self.posted[inst] = 1
        recv, tick = divmod(inst, self.ticks)
        self._start_if_all(self.ways.group[recv], tick, now)

    def arrive(self, inst: int, now: float) -> int:
        """A delivery has ended; returns its send's instance when that was the last one, else -1."""
        recv, tick = divmod(inst, self.ticks)
        send = self.ref[recv] * self.ticks + tick
        self.undelivered[send] -= 1
        return -1 if self.undelivered[send] else send

    def passed(self, number: int, now: float) -> None:
        """A router's turn."""
        self.routers.passed(number, now)

    # --- a node's own part ---

    def _start_if_all(self, group: Sequence[int], tick: int, now: float) -> None:
        ticks, row = self.ticks, self.ref[group[0]]
        send = row * ticks + tick
        if not self.started[send] or not all(self.posted[recv * ticks + tick] for recv in group):
            return
        recvs = {self.program.node[recv]: recv * ticks + tick for recv in group}
        heappush(self.heap, (now, ENTER_AHEAD, len(self.posted) + len(self.flows)))
        self.flows.append(Flow(send, self.program.node[row], self.ways.tree(group), recvs))

    def _counts(self, row: int) -> tuple[int, int]:
        """Descriptors and packets of a send."""
        found = self.counted.get(row)
        if found is None:
            sched, packet = self.program.sched, self.port.packet
            packets = 1 if packet is None else num_packets(sched, row, packet)
            found = self.counted[row] = num_descriptors(sched, row), packets
        return found

    def _pair(self, recv: int) -> tuple[float, float]:
        """On a switch: how many times longer a byte takes between two nodes than at their ports, and seconds more."""
        if not self.network.has_ports:
            return 1.0, 0.0
        found = [self.network.into(a, b, 1) for a, b in self.ways.links[recv]]
        return max(weight for _, weight, _ in found), sum(latency - line.latency for line, _, latency in found)

    def _hand_over(self, number: int, now: float, count: int) -> None:
        """A node writes its descriptors one after the other; a payload leaves once it has the first few."""
        flow = self.flows[number]
        flow.handed = max(now, self.free[flow.node])
        self.free[flow.node] = flow.handed + self.port.written_s(count)
        heappush(self.heap, (flow.handed + self.port.written_s(min(count, BATCH)), LEAVE, number))

    def leave(self, number: int, now: float) -> None:
        """A payload's first descriptors are there: packets are fetched and stand at the router one by one."""
        flow, port, node = self.flows[number], self.port, self.flows[number].node
        if flow.send < 0:
            at = max(now + port.delivery_s / 2, self.fetched[node])
            self.routers.enter(node, Train(number, flow.tree, port.header_s, port.header_s, is_last=True), at)
            return
        row = flow.send // self.ticks
        count, packets = self._counts(row)
        trains = min(packets, max(math.ceil(packets / self.thin), TRAINS))
        num_bytes = self.size[row] / port.rate * max(self._pair(recv // self.ticks)[0] for recv in flow.recvs.values())
        seconds, first = (num_bytes + packets * port.header_s) / trains, num_bytes / packets + port.header_s
        for index in range(trains):
            written = flow.handed + port.written_s(min(count, (index * count // trains // BATCH + 1) * BATCH))
            start = max(written + port.delivery_s / 2, self.fetched[node])
            self.fetched[node] = start + seconds - port.header_s
            train = Train(number, flow.tree, seconds, first, is_last=index == trains - 1)
            self.routers.enter(node, train, start + first - port.header_s)

    # --- what the routers say ---

    def ports(self, router: int) -> list[int | None]:
        """Whom a router's inputs are from."""
        return ports_of(self.network.cluster.topology, self.program.sched.meta.num_nodes, router)

    def pace(self, a: int, b: int) -> float:
        """How many times longer than at a port a byte takes on a link; on a switch, where it is slower."""
        return max(self.network.line(a, b).pace * self.port.rate, 1.0)

    def onward(self, a: int, b: int) -> float:
        """From the start at a router to the header at the next; a switch counts as one hop."""
        if b == SWITCH:
            return 0.0
        return max(self.network.line(a, b).latency - (CHECK + GRANT) * self.port.header_s, 0.0)

    def crosses(self, train: Train, a: int, b: int, at: float, seconds: float) -> None:
        """A train starts on a link."""
        flow = self.flows[train.number]
        self.network.line(a, b).busy += train.seconds * self.pace(a, b)
        if flow.send >= 0:
            end = at + seconds + self.onward(a, b)
            flow.hops[a, b] = (flow.hops.get((a, b), (at, 0.0))[0], end)

    def delivered(self, number: int, node: int, at: float) -> None:
        """The last packet has left a receiver's router."""
        flow, port = self.flows[number], self.port
        inst = flow.recvs[node]
        if flow.send < 0:
            heappush(self.heap, (at + port.delivery_s / 2, ENTER, inst))
            return
        end = at + port.delivery_s / 2 + self._pair(inst // self.ticks)[1]
        heappush(self.heap, (end, DONE, inst))
        row = flow.send // self.ticks
        seconds = self.size[row] / port.rate + self._counts(row)[1] * port.header_s
        self.entered[self.chunk[inst // self.ticks], node] += seconds
        for a, b in self.ways.links[inst // self.ticks]:
            if hop := flow.hops.pop((SWITCH, b) if self.network.has_ports else (a, b), None):
                self.hops.extend((flow.send, a, b, *hop))


class Port:
    """A profile's numbers for a node's port."""

    def __init__(self, profile: Profile) -> None:
        assert profile.port_bytes_s is not None, "packets are for profiles with port_bytes_s"
        self.rate = profile.port_bytes_s
        self.packet, self.header = profile.packet_bytes, profile.header_bytes or 0.0
        self.header_s = self.header / self.rate
        self.descriptor_s, self.delivery_s = profile.descriptor_s or 0.0, profile.delivery_s or 0.0
        self.doorbell_s = profile.doorbell_s or 0.0
        self.buffer_s = math.inf if profile.buffer_bytes is None else profile.buffer_bytes / self.rate

    def written_s(self, count: int) -> float:
        """Seconds in which so many descriptors are written, and their doorbells."""
        return count * self.descriptor_s + -(-count // BATCH) * self.doorbell_s
