"""Packets under way: payloads share links and ports, cut through the nodes between, and leave a node in turn.

This is `sim.transfers` for hardware whose profile says `port_bytes_s`: all that a node sends leaves it by one port, all
that it receives enters it by one. A send is a row of packets, each with a header, that go down the whole tree of their
receivers at once, at the rate of its slowest place; they start when all receivers have posted (where receivers may wait
for each other, each gets packets of its own). Posting is a packet too: a header to the sender. What a node sends
leaves in the order in which it was handed over. Where several payloads meet, packets take turns: each gets an equal
part, and what another place keeps it from using goes to the others (max-min fairness).
"""

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappush

import numpy as np

from mcf.cluster import SWITCH
from mcf.schedule.deadlock import lone_copies
from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.schedule import Array, Schedule
from mcf.schedule.steps import DECODE, KV, RECV
from mcf.sim.events import DONE, ENTER, ENTER_AHEAD, LEAVE, PASSED, Event
from mcf.sim.network import Line, Link, Network
from mcf.sim.profile import Profile
from mcf.sim.program import Program

BATCH = 16  # descriptors that are written before the network half hears of them


class Flow:
    """A payload on its way to the receives of one group, or the posting of a receive (`lines` is empty)."""

    __slots__ = (
        "due",
        "ends",
        "has_ended",
        "left",
        "lines",
        "links",
        "most",
        "node",
        "rate",
        "send",
        "since",
        "start",
        "told",
    )

    def __init__(self, send: int, node: int, num_bytes: float, most: float) -> None:
        self.send, self.node, self.left, self.most = send, node, num_bytes, most
        self.ends: list[tuple[int, float]] = []  # (receive, seconds behind the last byte)
        self.links: list[Link] = []
        self.lines: list[Line] = []
        self.rate = self.since = self.start = 0.0
        self.has_ended = False
        self.due = self.told = math.inf  # when it ends, and the first event that says so


class PacketTransfers:
    """Deliveries of all sends. The interface is that of `Transfers`."""

    def __init__(self, program: Program, network: Network, heap: list[Event]) -> None:
        self.program, self.network, self.heap, self.ticks = program, network, heap, program.num_ticks
        steps = program.sched.steps
        self.port = _Port(network.profile)
        self.ref: list[int] = steps["ref"].tolist()
        self.size: list[int] = program.sched.row_bytes.tolist()
        self.chunk: list[int] = steps["chunk"].tolist()
        self.hops = array("d")  # send instance, from, to, start, end; and the next
        self.groups: dict[int, list[list[int]]] = {}  # of a send: receives that get one packet together
        self.group: dict[int, list[int]] = {}  # the same of each receive
        self.way: dict[int, list[Link]] = {}
        recvs = np.flatnonzero((steps["kind"] == RECV) & (steps["stage"] != DECODE)).tolist()
        self._set_groups(recvs)
        self.started, self.posted = (bytearray(len(steps) * self.ticks) for _ in range(2))
        counts = np.bincount([self.ref[recv] for recv in recvs], minlength=len(steps))
        self.undelivered: list[int] = np.repeat(counts, self.ticks).tolist()
        nodes = range(program.sched.meta.num_nodes)
        self.inward = [Line(-1, (SWITCH, n), 1 / self.port.rate, 0.0, []) for n in nodes]
        self.flows: list[Flow] = []
        self.queue: list[deque[int]] = [deque() for _ in nodes]
        self.free = [0.0 for _ in nodes]  # when a node can hand over the next payload
        self.num_descriptors: dict[int, int] = {}
        self.is_sending = [False for _ in nodes]
        self.users: dict[Line, set[int]] = {}
        self.entered: Array = np.zeros((program.sched.meta.num_chunks, len(nodes)))  # seconds at the receivers' ports

    def _set_groups(self, recvs: Sequence[int]) -> None:
        sched, alone = self.program.sched, lone_copies(self.program.sched)
        into: dict[int, dict[int, Link]] = {}
        for recv in recvs:
            ref = self.ref[recv]
            groups = self.groups.setdefault(ref, [])
            if not groups or ref in alone:
                groups.append([])
            groups[-1].append(recv)
            self.group[recv] = groups[-1]
            self.way[recv] = self._way(recv, ref, sched.routes, into)

    def _way(
        self, recv: int, ref: int, routes: Sequence[tuple[Link, ...]], into: dict[int, dict[int, Link]]
    ) -> list[Link]:
        """The links from the sender to a receiver."""
        root, dst, route = self.program.node[ref], self.program.dst[ref], self.program.route[ref]
        if route < 0:
            return [(root, dst)]
        if dst >= 0:
            return list(routes[route])
        edges = into.setdefault(route, {edge[1]: edge for edge in routes[route]})
        out = [edges[self.program.node[recv]]]
        while out[-1][0] != root:
            out.append(edges[out[-1][0]])
        return out[::-1]

    # --- what the machine says ---

    def post(self, inst: int, now: float) -> None:
        """A receive is posted: its sender hears of it by a header."""
        flow = Flow(-1, self.program.node[inst // self.ticks], 0.0, math.inf)
        flow.ends = [(inst, self._latency([(b, a) for a, b in self.way[inst // self.ticks]]))]
        self.flows.append(flow)
        self._hand_over(len(self.flows) - 1, now, 1)

    def send(self, inst: int, now: float) -> None:
        """A send starts: its node has the payload."""
        self.started[inst] = 1
        row, tick = divmod(inst, self.ticks)
        for group in self.groups[row]:
            self._start_if_all(group, tick, now)

    def enter(self, inst: int, now: float) -> None:
        """A sender hears of a posted receive; or a payload's turn to be handed over, behind what is posted just now."""
        if inst >= len(self.posted):
            flow = self.flows[inst - len(self.posted)]
            self._hand_over(inst - len(self.posted), now, self._descriptors(flow.send // self.ticks))
            return
        self.posted[inst] = 1
        recv, tick = divmod(inst, self.ticks)
        self._start_if_all(self.group[recv], tick, now)

    def arrive(self, inst: int, now: float) -> int:
        """A delivery has ended; returns its send's instance when that was the last one, else -1."""
        recv, tick = divmod(inst, self.ticks)
        send = self.ref[recv] * self.ticks + tick
        self.undelivered[send] -= 1
        return -1 if self.undelivered[send] else send

    def leave(self, number: int, now: float) -> None:
        """A payload is ready to leave its node."""
        node = self.flows[number].node
        self.queue[node].append(number)
        if not self.is_sending[node]:
            self._next(node, now)

    def passed(self, number: int, now: float) -> None:
        """The last byte of a payload has left, unless others have held it up since."""
        flow = self.flows[number]
        if flow.has_ended:
            return
        flow.told = math.inf
        if flow.due > now:
            self._tell(number)
            return
        flow.has_ended = True
        others = self._withdraw(number, now)
        self._next(flow.node, now)
        if others:
            self._share(others, now)

    # --- payloads ---

    def _start_if_all(self, group: Sequence[int], tick: int, now: float) -> None:
        ticks, row = self.ticks, self.ref[group[0]]
        send = row * ticks + tick
        if not self.started[send] or not all(self.posted[recv * ticks + tick] for recv in group):
            return
        flow = Flow(send, self.program.node[row], self.port.wire_bytes(self.size[row]), self.port.rate)
        flow.links = list(dict.fromkeys(link for recv in group for link in self.way[recv]))
        for recv in group:
            end = self._latency(self.way[recv]) + self.port.delivery_s
            flow.ends.append((recv * ticks + tick, end))
            flow.lines.append(self.inward[self.program.node[recv]])
        flow.lines += self._lines(flow)
        heappush(self.heap, (now, ENTER_AHEAD, len(self.posted) + len(self.flows)))
        self.flows.append(flow)

    def _lines(self, flow: Flow) -> list[Line]:
        """The links of a flow; on a switch the ports of its receivers, and of slow pairs the speed."""
        if not self.network.has_ports:
            return [self.network.line(a, b) for a, b in flow.links]
        for a, b in flow.links:
            flow.most = min(flow.most, self.network.profile.link_rate(a, b))
        return [self.network.line(SWITCH, b) for _, b in flow.links]

    def _latency(self, way: Iterable[Link]) -> float:
        if self.network.has_ports:
            return sum(self.network.into(a, b, 0)[2] for a, b in way)
        return sum(self.network.line(a, b).latency for a, b in way)

    def _descriptors(self, row: int) -> int:
        found = self.num_descriptors.get(row)
        if found is None:
            found = self.num_descriptors[row] = num_descriptors(self.program.sched, row)
        return found

    def _hand_over(self, number: int, now: float, count: int) -> None:
        """A node writes its descriptors one after the other; a payload leaves once it has the first few."""
        node, each = self.flows[number].node, self.port.descriptor_s
        start = max(now, self.free[node])
        self.free[node] = start + count * each
        heappush(self.heap, (start + min(count, BATCH) * each, LEAVE, number))

    def _next(self, node: int, now: float) -> None:
        """Let the next payload leave a node."""
        self.is_sending[node] = bool(self.queue[node])
        if not self.queue[node]:
            return
        number = self.queue[node].popleft()
        flow = self.flows[number]
        flow.start = flow.since = now
        if not flow.lines:
            flow.due = now + self.port.header_s
            self._tell(number)
            return
        for line in flow.lines:
            line.busy += flow.left * line.pace
            self.users.setdefault(line, set()).add(number)
        self._share([number], now)

    def _withdraw(self, number: int, now: float) -> set[int]:
        """End a payload; returns those that shared a line with it."""
        flow = self.flows[number]
        if not flow.lines:
            ((inst, latency),) = flow.ends
            heappush(self.heap, (now + latency, ENTER, inst))
            return set()
        others = set[int]()
        for line in flow.lines:
            self.users[line].discard(number)
            others |= self.users[line]
        for a, b in flow.links:
            self.hops.extend((flow.send, a, b, flow.start, now + self._latency([(a, b)])))
        seconds = self.port.wire_bytes(self.size[flow.send // self.ticks]) / self.port.rate
        for inst, latency in flow.ends:
            recv = inst // self.ticks
            self.entered[self.chunk[recv], self.program.node[recv]] += seconds
            heappush(self.heap, (now + latency, DONE, inst))
        return others

    # --- rates ---

    def _tell(self, number: int) -> None:
        flow = self.flows[number]
        if flow.due < flow.told:
            flow.told = flow.due
            heappush(self.heap, (flow.due, PASSED, number))

    def _share(self, numbers: Iterable[int], now: float) -> None:
        """Set the rates of payloads, and of all whom they touch."""
        found = self._touched(numbers)
        for number in found:
            flow = self.flows[number]
            flow.left -= flow.rate * (now - flow.since)
            flow.since = now
        for number, rate in fair_rates({n: (self.flows[n].most, self.flows[n].lines) for n in found}).items():
            flow = self.flows[number]
            flow.rate, flow.due = rate, now + max(flow.left, 0.0) / rate
            self._tell(number)

    def _touched(self, numbers: Iterable[int]) -> list[int]:
        found, todo = set(numbers), list(numbers)
        while todo:
            for line in self.flows[todo.pop()].lines:
                new = self.users[line] - found
                found |= new
                todo += new
        return sorted(found)


def fair_rates(flows: dict[int, tuple[float, list[Line]]]) -> dict[int, float]:
    """Max-min fair bytes per second of flows, each with the most it can take and the lines it uses.

    Progressive filling: the place that gives least to each of its flows settles their rates; the rest share the rest.
    """
    left: dict[Line, float] = {}
    users: dict[Line, set[int]] = {}
    for number, (_, lines) in flows.items():
        for line in lines:
            left[line] = 1 / line.pace
            users.setdefault(line, set()).add(number)
    out: dict[int, float] = {}
    while len(out) < len(flows):
        line, share = min(((line, left[line] / len(users[line])) for line in users), key=lambda one: one[1])
        slow = [n for n, (most, _) in flows.items() if n not in out and most <= share]
        for number in slow or sorted(users[line]):
            out[number] = min(flows[number][0], share)
            for other in flows[number][1]:
                left[other] -= out[number]
                users[other].discard(number)
                if not users[other]:
                    del users[other]
    return out


def num_descriptors(sched: Schedule, row: int) -> int:
    """Orders that a node gives its network half for one layer of a send.

    One for each KV head (of KV: for its keys and its values) and row of equal blocks at equal distances.
    """
    step = sched.step(row)
    if step.payload == KV:
        chunks, makers = range(step.c_lo, min(step.c_hi, sched.meta.num_chunks)), range(step.m_lo, step.m_hi)
        spans = sorted(span for chunk in chunks for maker in makers for span in sched.spans(chunk, maker))
    else:
        spans = sorted(sched.spans(step.chunk, step.q))
    blocks = [(at, min(BLOCK_TOKENS, hi - at)) for lo, hi in spans for at in range(lo, hi, BLOCK_TOKENS)]
    return (step.h_hi - step.h_lo) * (2 if step.payload == KV else 1) * _num_loops(blocks)


def _num_loops(blocks: Sequence[tuple[int, int]]) -> int:
    """How many rows of equal blocks (position, tokens) at equal distances there are, the first as long as can be."""
    count = at = 0
    while at < len(blocks):
        count, end = count + 1, at + 1
        while end < len(blocks) and blocks[end][1] == blocks[at][1]:
            if blocks[end][0] - blocks[end - 1][0] != blocks[at + 1][0] - blocks[at][0]:
                break
            end += 1
        at = end
    return count


class _Port:
    """A profile's numbers for a node's port."""

    def __init__(self, profile: Profile) -> None:
        assert profile.port_bytes_s is not None, "packets are for profiles with port_bytes_s"
        self.rate = profile.port_bytes_s
        self.packet, self.header = profile.packet_bytes, profile.header_bytes or 0.0
        self.header_s = self.header / self.rate
        self.descriptor_s, self.delivery_s = profile.descriptor_s or 0.0, profile.delivery_s or 0.0

    def wire_bytes(self, num_bytes: float) -> float:
        """Bytes of a payload with the headers of its packets."""
        if self.packet is None:
            return num_bytes
        return num_bytes + math.ceil(num_bytes / self.packet) * self.header
