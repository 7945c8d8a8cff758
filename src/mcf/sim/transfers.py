"""Payloads under way: a hop starts when its sender has the whole payload and its receiver has posted (the credit)."""

from heapq import heappush

import numpy as np

from mcf.schedule.steps import DECODE, RECV
from mcf.sim.network import SWITCH, Network
from mcf.sim.program import Program

Event = tuple[float, int, int]  # time, rank, instance
Hop = tuple[int, int, int, float, float]  # send instance, from, to, start, end
DONE, LEAVE, LEAVE_AHEAD, ENTER, ENTER_AHEAD = range(5)


class Transfers:
    """Deliveries of all sends. An instance of a receive is one delivery; it asks for its links by events."""

    def __init__(self, program: Program, network: Network, heap: list[Event]) -> None:
        self.program, self.network, self.heap, self.ticks = program, network, heap, program.num_ticks
        steps = program.sched.steps
        self.size: list[int] = program.sched.row_bytes.tolist()
        self.ref: list[int] = steps["ref"].tolist()
        self.hops: list[Hop] = []
        self.posted, self.offered = (bytearray(len(steps) * self.ticks) for _ in range(2))
        self.way: dict[int, tuple[tuple[int, int], ...]] = {}  # links that a receive's payload crosses
        self.children: dict[tuple[int, int], list[int]] = {}  # receives of a send that a node serves
        counts = np.zeros(len(steps), dtype=np.int64)
        for recv in np.flatnonzero((steps["kind"] == RECV) & (steps["stage"] != DECODE)).tolist():
            self._add_delivery(recv, int(steps["node"][recv]))
            counts[self.ref[recv]] += 1
        self.undelivered: list[int] = np.repeat(counts, self.ticks).tolist()
        self.place: dict[int, int] = {}  # links that a delivery over several links has crossed
        self.port: dict[tuple[int, int], float] = {}  # when a payload gets the sender's port
        self.pending: dict[tuple[int, int], list[int]] = {}  # deliveries that wait for that

    def _add_delivery(self, recv: int, node: int) -> None:
        send = self.program.sched.step(self.ref[recv])
        links = self.program.sched.routes[send.route] if send.route >= 0 else ((send.node, send.dst),)
        self.way[recv] = links if send.dst >= 0 else tuple(edge for edge in links if edge[1] == node)
        self.children.setdefault((self.ref[recv], self.way[recv][0][0]), []).append(recv)

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
        self._offer(send, self.program.node[recv], now)
        self.undelivered[send] -= 1
        return -1 if self.undelivered[send] else send

    def _offer(self, send: int, node: int, now: float) -> None:
        row, tick = divmod(send, self.ticks)
        for recv in self.children.get((row, node), ()):
            inst = recv * self.ticks + tick
            self.offered[inst] = 1
            if self.posted[inst]:
                self._request(inst, now)

    # --- links ---

    def _request(self, inst: int, now: float) -> None:
        """Ask for the next link; what is fetched ahead ranks behind at equal times."""
        recv, tick = divmod(inst, self.ticks)
        late = self.program.ahead[recv] > 0
        if self.network.has_ports:
            key = self.ref[recv] * self.ticks + tick, self.way[recv][self.place.get(inst, 0)][0]
            if key in self.port:
                heappush(self.heap, (max(now, self.port[key]), ENTER + late, inst))
                return
            waiting = self.pending.setdefault(key, [])
            waiting.append(inst)
            if len(waiting) > 1:
                return
        heappush(self.heap, (now, LEAVE + late, inst))

    def leave(self, inst: int, now: float) -> None:
        """A payload's turn to ask for a link, or for its sender's port."""
        recv, tick = divmod(inst, self.ticks)
        send, (a, b) = self.ref[recv], self.way[recv][self.place.get(inst, 0)]
        if not self.network.has_ports:
            self._cross(inst, self.network.occupy((a, b), now, self.size[send], self.network.rate(a, b)))
            return
        key = send * self.ticks + tick, a
        start = self.port[key] = self.network.occupy((a, SWITCH), now, self.size[send], self.network.ports[a])
        rank = ENTER + (self.program.ahead[recv] > 0)
        for child in self.pending.pop(key):
            heappush(self.heap, (start, rank, child))

    def enter(self, inst: int, now: float) -> None:
        """A payload's turn to ask for its receiver's port."""
        recv = inst // self.ticks
        a, b = self.way[recv][self.place.get(inst, 0)]
        rate = self.network.rate(a, b)
        self._cross(inst, self.network.occupy((SWITCH, b), now, self.size[self.ref[recv]], rate))

    def _cross(self, inst: int, start: float) -> None:
        recv, tick = divmod(inst, self.ticks)
        send, place = self.ref[recv], self.place.get(inst, 0)
        a, b = self.way[recv][place]
        end = self.network.arrival(start, self.size[send], a, b)
        self.hops.append((send * self.ticks + tick, a, b, start, end))
        if place + 1 == len(self.way[recv]):
            heappush(self.heap, (end, DONE, inst))
            return
        self.place[inst] = place + 1
        late = self.program.ahead[recv] > 0
        heappush(self.heap, (end, LEAVE + late, inst))
        if self.network.has_ports:
            self.pending[send * self.ticks + tick, b] = [inst]
