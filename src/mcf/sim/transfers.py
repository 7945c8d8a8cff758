"""Payloads under way: a hop starts when its sender has the whole payload and its receiver has posted (the credit)."""

import math
from array import array
from collections.abc import Iterable
from heapq import heappush

import numpy as np

from mcf.cluster import SWITCH
from mcf.schedule.schedule import Array
from mcf.schedule.steps import DECODE, RECV
from mcf.sim.events import DONE, ENTER, LEAVE, PASSED, Event
from mcf.sim.fold import Turn
from mcf.sim.network import Job, Line, Network
from mcf.sim.program import Program
from mcf.sim.reduce import Reduction


class Transfers:
    """Deliveries of all sends. An instance of a receive is one delivery; it asks for its links by events."""

    def __init__(
        self, program: Program, network: Network, heap: list[Event], reduction: Reduction | None = None
    ) -> None:
        self.program, self.network, self.heap, self.ticks = program, network, heap, program.num_ticks
        self.turn: Turn | None = network.turn
        self.has_ports = network.has_ports
        self.reduction = reduction
        steps = program.sched.steps
        self.ref: list[int] = steps["ref"].tolist()
        sizes: list[int] = program.sched.row_bytes.tolist()
        self.size = [sizes[ref] if ref >= 0 else 0 for ref in self.ref]  # by receive
        self.late = [ahead > 0 for ahead in program.ahead]
        self.hops = array("d")  # send instance, from, to, start, end; and the next
        self.posted, self.offered = (bytearray(len(steps) * self.ticks) for _ in range(2))
        self.way: dict[int, tuple[tuple[int, int], ...]] = {}  # links that a receive's payload crosses
        self.children: dict[tuple[int, int], list[int]] = {}  # receives of a send that a node serves
        self.at = self._places(steps["node"], steps["dst"], steps["kind"] == RECV)
        self.into: dict[int, dict[int, tuple[int, int]]] = {}  # by route: the link into each node
        counts = np.zeros(len(steps), dtype=np.int64)
        for recv in np.flatnonzero((steps["kind"] == RECV) & (steps["stage"] != DECODE)).tolist():
            self._add_delivery(recv)
            counts[self.ref[recv]] += 1
        self.undelivered: list[int] = np.repeat(counts, self.ticks).tolist()
        self.asking: dict[tuple[float, int], list[int]] = {}  # who asks for a sender's port: by time, for a send
        self.place: dict[int, int] = {}  # links that a delivery over several links has crossed
        self.port: dict[tuple[int, int], tuple[float, float]] = {}  # when a payload has its sender's port: from, to
        self.pending: dict[tuple[int, int], list[int]] = {}  # deliveries that wait for that
        self.unsent: dict[tuple[int, int], list[tuple[int, float]]] = {}  # received but for what is not sent yet

    def _places(self, node: Array, sender: Array, is_recv: Array) -> list[int]:
        """[R] the node that a row is on; of a receive, as its sender sees it where one node stands for all."""
        if self.turn is None:
            return node.tolist()  # type: ignore[no-any-return]
        return np.where(is_recv, self.turn.back(sender, node), node).tolist()  # type: ignore[no-any-return]

    def _add_delivery(self, recv: int) -> None:
        ref = self.ref[recv]
        dst, route = self.program.dst[ref], self.program.route[ref]
        if dst >= 0:
            self.way[recv] = self.program.sched.routes[route] if route >= 0 else ((self.program.node[ref], dst),)
        else:
            if route not in self.into:
                self.into[route] = {edge[1]: edge for edge in self.program.sched.routes[route]}
            self.way[recv] = (self.into[route][self.at[recv]],)
        self.children.setdefault((ref, self.way[recv][0][0]), []).append(recv)

    def post(self, inst: int, now: float) -> None:
        """A receive is posted."""
        self.posted[inst] = 1
        if self.offered[inst]:
            self._request(inst, now)

    def send(self, inst: int, now: float) -> None:
        """A send starts: its node has the payload."""
        self._offer(inst, self.program.node[inst // self.ticks], now)

    def arrive(self, inst: int, now: float) -> int:
        """A delivery has ended; returns its send's instance when that was the last one, else -1."""
        recv, tick = divmod(inst, self.ticks)
        send = self.ref[recv] * self.ticks + tick
        self._offer(send, self.at[recv], now)
        self.undelivered[send] -= 1
        return -1 if self.undelivered[send] else send

    def _offer(self, send: int, node: int, now: float) -> None:
        row, tick = divmod(send, self.ticks)
        for recv in self.children.get((row, node), ()):
            inst = recv * self.ticks + tick
            self.offered[inst] = 1
            if self.posted[inst]:
                self._request(inst, now)

    # --- requests ---

    def _request(self, inst: int, now: float) -> None:
        """Ask for the next link; what is fetched ahead ranks behind at equal times.

        At a sender's port a payload's number is its send's: the order of the sender's own list.
        """
        late = self.late[inst // self.ticks]
        if not self.has_ports:
            heappush(self.heap, (now, LEAVE + late, inst))
            return
        key = self._key(inst)
        port = self.port.get(key)
        if port is not None:
            heappush(self.heap, (max(now, port[0]), ENTER + late, inst))
        elif key in self.pending:
            self.pending[key].append(inst)
        else:
            self.pending[key] = [inst]
            self._ask(key[0], inst, now)

    def _ask(self, send: int, inst: int, now: float) -> None:
        """Ask for a sender's port."""
        self.asking.setdefault((now, send), []).append(inst)
        heappush(self.heap, (now, LEAVE + self.late[inst // self.ticks], send))

    def leave(self, number: int, now: float) -> None:
        """A payload's turn to ask for a link, or for its sender's port."""
        if not self.has_ports:
            a, b = self._hop(number)
            team = self.reduction.team(number, (a, b)) if self.reduction else (number,)
            if team:
                self._carry(self.network.line(a, b), team, now)
            return
        inst = self.asking[now, number].pop(0)
        recv, key = inst // self.ticks, self._key(inst)
        line = self.network.line(key[1], SWITCH)
        if self.late[recv]:
            self._queue(line, (inst, self.size[recv]), now)
            return
        self.port[key] = start, _ = line.urgent(now, self.size[recv])
        self._enter_all(key, start)

    def _enter_all(self, key: tuple[int, int], start: float) -> None:
        """A payload has its sender's port: those that wait for it ask for theirs."""
        if start < math.inf:
            for child in self.pending.pop(key, ()):
                heappush(self.heap, (start, ENTER + self.late[child // self.ticks], child))

    def enter(self, inst: int, now: float) -> None:
        """A payload's turn to ask for its receiver's port."""
        recv = inst // self.ticks
        way = self.way[recv]
        a, b = way[0] if len(way) == 1 else way[self.place.get(inst, 0)]
        line, size, latency = self.network.into(a, b, self.size[recv])
        if self.late[recv]:
            self._queue(line, (inst, size), now)
        elif self.reduction is None:
            start, end = line.urgent(now, size)
            left = self.port[inst + (self.ref[recv] - recv) * self.ticks, a][1]
            self._cross((inst,), start, left if left > end else end, latency)
        else:
            team = self.reduction.team(inst, line.link)
            if team:
                self._enter_as_one(line, team, now)

    def _enter_as_one(self, line: Line, team: tuple[int, ...], now: float) -> None:
        """States that have become one enter a receiver's port."""
        latency = size = 0.0
        for inst in team:
            _, own, far = self._entry(inst)
            latency, size = max(latency, far), max(size, own)
        start, end = line.urgent(now, size)
        self._cross(team, start, max([end, *(self.port[self._key(inst)][1] for inst in team)]), latency)

    # --- lines ---

    def _carry(self, line: Line, team: tuple[int, ...], now: float) -> None:
        """Give a link to one payload, or to states that have become one."""
        recv = team[0] // self.ticks
        if self.late[recv]:
            self._queue(line, (team[0], self.size[recv]), now)
        else:
            self._cross(team, *line.urgent(now, self.size[recv]), line.latency)

    def _entry(self, inst: int) -> tuple[Line, float, float]:
        """A receiver's port, the bytes of a payload there, and the latency of the hop."""
        a, b = self._hop(inst)
        return self.network.into(a, b, self.size[inst // self.ticks])

    def _hop(self, inst: int) -> tuple[int, int]:
        """The next link, or pair of nodes of a switch, that a payload crosses."""
        way = self.way[inst // self.ticks]
        return way[0] if len(way) == 1 else way[self.place.get(inst, 0)]

    def _queue(self, line: Line, job: Job, now: float) -> None:
        """Line up a payload that is fetched ahead."""
        if line.low is None:
            self._begin(line, job, now)
        else:
            line.queue.append(job)

    def _begin(self, line: Line, job: Job, now: float) -> None:
        line.begin(job, now)
        if line.due < math.inf:
            heappush(self.heap, (line.due, PASSED, line.number))
        if self.has_ports and line.link[1] == SWITCH:
            key = self._key(job[0])
            self.port[key] = line.began, math.inf
            self._enter_all(key, line.began)

    def passed(self, number: int, now: float) -> None:
        """What was fetched ahead over a line has passed, unless urgent payloads have held it up since."""
        line = self.network.lines[number]
        if line.due > now:
            if line.due < math.inf:
                heappush(self.heap, (line.due, PASSED, number))
            return
        assert line.low is not None, "only a payload under way is due"
        inst, start = line.low[0], line.began
        line.low = None
        self._has_passed(line, inst, start, now)
        if line.queue:
            self._begin(line, line.queue.popleft(), now)

    def _has_passed(self, line: Line, inst: int, start: float, now: float) -> None:
        key = self._key(inst)
        if not self.has_ports:
            self._cross((inst,), start, now, line.latency)
        elif line.link[1] == SWITCH:
            self.port[key] = self.port[key][0], now
            for child, began in self.unsent.pop(key, ()):
                self._cross((child,), began, now, self._entry(child)[2])
        elif self.port[key][1] > now:
            self.unsent.setdefault(key, []).append((inst, start))
        else:
            self._cross((inst,), start, now, self._entry(inst)[2])

    def _key(self, inst: int) -> tuple[int, int]:
        """A payload's send, and the node that it leaves next."""
        ticks = self.ticks
        recv = inst // ticks
        way = self.way[recv]
        hop = way[0] if len(way) == 1 else way[self.place.get(inst, 0)]
        return inst + (self.ref[recv] - recv) * ticks, hop[0]

    def _cross(self, team: Iterable[int], start: float, end: float, latency: float) -> None:
        """A payload's last byte has left: it arrives, or asks for its next link."""
        if end == math.inf:
            return
        end += latency
        ticks, is_first = self.ticks, True
        for inst in team:
            recv = inst // ticks
            way = self.way[recv]
            place = self.place.get(inst, 0) if len(way) > 1 else 0
            if is_first:
                a, b = way[place]
                self.hops.extend((inst + (self.ref[recv] - recv) * ticks, a, b, start, end))
                is_first = False
            if place + 1 == len(way):
                heappush(self.heap, (end, DONE, inst))
            else:
                self.place[inst] = place + 1
                self._go_on(inst, end)

    def _go_on(self, inst: int, now: float) -> None:
        """Ask for the next link of a way."""
        if self.has_ports:
            key = self._key(inst)
            self.pending[key] = [inst]
            self._ask(key[0], inst, now)
        else:
            heappush(self.heap, (now, LEAVE + self.late[inst // self.ticks], inst))
