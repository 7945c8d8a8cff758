"""Packets in a network of routers that cut through: who waits for whom, packet by packet.

A packet takes all outputs that it needs at a router at once. It is given them when none of them is promised to another
packet and each has room for it, one packet of a router at a time; it starts when the packets before it have left them,
and then moves without a pause, at the speed of the slowest. What it waits for stands idle: trees that cross each other
cost time. Between two routers a packet lies in the buffers of the link; at its receiver it is stored whole and handed
out. Ports take turns to be first; the one whose turn it is keeps the others from its outputs.

The rules are those of `mcf.rtl.hdl.router`, `ingress` and `allocator`, in the time that a header takes (a beat). Where
several packets move as one train, a link holds more than it does in hardware: half a train more or less is allowed for.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappush
from typing import Protocol

from mcf.sim.events import PASSED, Event
from mcf.sim.ways import Tree

CHECK = 3  # beats from a header's arrival until the router knows its outputs
GRANT = 3  # beats for each packet that is given its outputs
SLACK = 32  # beats that an input holds: the next packet is looked at once it is in there
STORE = 3  # beats from a packet's last beat until it is handed out


class Train:
    """Packets of a payload that move as one: seconds that a header, the first packet and all of it take on a port."""

    __slots__ = ("first", "is_last", "number", "seconds", "tree")

    def __init__(self, number: int, tree: Tree, seconds: float, first: float, *, is_last: bool) -> None:
        self.number, self.tree, self.seconds, self.first, self.is_last = number, tree, seconds, first, is_last


class Input:
    """A port that packets come in by: those that have not started, and how much has gone on."""

    __slots__ = ("drained", "free", "is_granted", "length", "pace", "queue", "router", "source", "start")

    def __init__(self, router: "Router", source: int, pace: float) -> None:
        self.router, self.source, self.pace = router, source, pace
        self.queue: deque[tuple[float, Train, list[Output]]] = deque()  # (when its outputs are known, train, outputs)
        self.is_granted = False
        self.free = self.start = self.length = self.drained = 0.0

    def moved(self, now: float) -> float:
        """Seconds' worth of packets that have gone on."""
        return self.drained + min(max(now - self.start, 0.0), self.length)


class Output:
    """A port that packets leave by: a link to another router's input, or to the node itself."""

    __slots__ = ("busy", "drain", "into", "is_promised", "length", "pace", "start", "waits", "written")

    def __init__(self, into: Input | None, pace: float) -> None:
        self.into, self.pace = into, pace
        self.is_promised = self.waits = False
        self.busy = self.drain = self.start = self.length = self.written = 0.0

    def held(self, now: float) -> float:
        """Seconds' worth of packets between this port and the next router's crossbar."""
        assert self.into is not None, "a node takes all that comes"
        return self.written + min(max(now - self.start, 0.0), self.length) - self.into.moved(now)


class Router:
    """Ports in their order, the outputs of each tree, whose turn it is, and when it can give outputs next."""

    __slots__ = ("holds_up", "inputs", "number", "outputs", "ready", "trees", "turn", "wakes")

    def __init__(self, number: int) -> None:
        self.number = number
        self.inputs: list[Input | None] = []
        self.outputs: dict[int, Output] = {}
        self.trees: dict[Tree, list[Output]] = {}
        self.holds_up = False  # somebody waits for an output that is promised
        self.turn, self.ready, self.wakes = 0, 0.0, math.inf


class Wires(Protocol):
    """What is between routers, and who hears of packets."""

    def ports(self, router: int) -> Sequence[int | None]:
        """Whom a router's inputs are from, itself last; None for an input that nothing is joined to."""

    def pace(self, a: int, b: int) -> float:
        """How many times longer than on a node's port a byte takes on a link."""

    def onward(self, a: int, b: int) -> float:
        """Seconds from a start at one router to the header at the next."""

    def crosses(self, train: Train, a: int, b: int, at: float, seconds: float) -> None:
        """A train starts on a link."""

    def delivered(self, number: int, node: int, at: float) -> None:
        """The last packet of a payload is handed out by a node's router."""


class Routers:
    """All routers of a network, made when they are first used.

    `beat` seconds of a header; `room` seconds' worth of packets between two routers from which no more are let go
    (infinity: no end).
    """

    def __init__(self, heap: list[Event], wires: Wires, beat: float, room: float) -> None:
        self.heap, self.wires, self.beat, self.room = heap, wires, beat, room
        self.routers: dict[int, Router] = {}
        self.numbered: list[Router | Input] = []  # what an event's number means
        self.numbers: dict[Router | Input, int] = {}

    def enter(self, node: int, train: Train, at: float) -> None:
        """A node's own train stands at its router at a time, behind those before it."""
        local = self._input(node, node)
        self._arrive(local, train, at)

    def passed(self, number: int, now: float) -> None:
        """What was asked for: a router looks, or a train starts."""
        what = self.numbered[number]
        if isinstance(what, Router):
            if what.wakes <= now:
                what.wakes = math.inf
                self._look(what, now)
        else:
            self._start(what, now)

    # --- ports ---

    def _router(self, number: int) -> Router:
        found = self.routers.get(number)
        if found is None:
            found = self.routers[number] = Router(number)
            self._count(found)
            for source in self.wires.ports(number):
                pace = 1.0 if source is None or source == number else self.wires.pace(source, number)
                found.inputs.append(None if source is None else Input(found, source, pace))
            for port in found.inputs:
                if port is not None:
                    self._count(port)
        return found

    def _count(self, what: Router | Input) -> None:
        self.numbers[what] = len(self.numbered)
        self.numbered.append(what)

    def _input(self, router: int, source: int) -> Input:
        return next(port for port in self._router(router).inputs if port is not None and port.source == source)

    def _output(self, at: Router, to: int) -> Output:
        found = at.outputs.get(to)
        if found is None:
            into = None if to == at.number else self._input(to, at.number)
            found = at.outputs[to] = Output(into, 1.0 if into is None else into.pace)
        return found

    def _outputs(self, at: Router, tree: Tree) -> list[Output]:
        """Of a tree's trains at a router."""
        found = at.trees.get(tree)
        if found is None:
            found = at.trees[tree] = [self._output(at, to) for to in tree.outs[at.number]]
        return found

    # --- what happens ---

    def _arrive(self, port: Input, train: Train, at: float) -> None:
        ready = at + CHECK * self.beat
        if not port.queue:  # the one before it has started, and all but the slack of it has to be gone
            ready = max(ready, port.start + max(port.length - SLACK * self.beat, 0.0) + CHECK * self.beat)
            self._wake(port.router, ready)
        port.queue.append((ready, train, self._outputs(port.router, train.tree)))

    def _wake(self, router: Router, at: float) -> None:
        if at < router.wakes:
            router.wakes = at
            heappush(self.heap, (at, PASSED, self.numbers[router]))

    def _look(self, router: Router, now: float) -> None:
        """Give one train its outputs, if one can have them."""
        if now < router.ready:
            self._wake(router, router.ready)
            return
        waiting, turn = self._waiting(router, now), router.inputs[router.turn]
        kept = next((outs for port, outs in waiting if port is turn), [])
        chosen = None
        for port, outs in waiting:
            if any(out.is_promised for out in outs):
                continue
            if port is turn:
                chosen = port, outs
                break
            if chosen is None and not any(out in kept for out in outs):
                chosen = port, outs
        router.holds_up = len(waiting) > (chosen is not None)
        if chosen is not None:
            if not kept or chosen[0] is turn:
                router.turn = (router.turn + 1) % len(router.inputs)
            self._grant(router, *chosen, now)
            if router.holds_up:
                self._wake(router, router.ready)

    def _waiting(self, router: Router, now: float) -> list[tuple[Input, list[Output]]]:
        """Inputs whose train has room where it goes to."""
        found = []
        for port in router.inputs:
            if port is None or port.is_granted or not port.queue:
                continue
            ready, train, outs = port.queue[0]
            if ready > now:
                self._wake(router, ready)
                continue
            room = max(self.room + (train.first - train.seconds) / 2, self.beat)
            if all(self._has_room(router, out, now, room) for out in outs):
                found.append((port, outs))
        return found

    def _has_room(self, router: Router, out: Output, now: float, room: float) -> bool:
        """Say whether a train fits; where not, look again when it may."""
        if out.into is None or (held := out.held(now)) <= room:
            return True
        out.waits = True
        if now < out.into.start + out.into.length:  # it falls when nothing more is written
            self._wake(router, max(now + max(held - room, self.beat), out.start + out.length))
        return False

    def _grant(self, router: Router, port: Input, outs: Iterable[Output], now: float) -> None:
        router.ready = now + GRANT * self.beat
        port.is_granted = True
        start = max(now + GRANT * self.beat, port.free)
        for out in outs:
            out.is_promised = True
            start = max(start, out.busy)
        heappush(self.heap, (start, PASSED, self.numbers[port]))

    def _start(self, port: Input, now: float) -> None:
        router = port.router
        _, train, outs = port.queue.popleft()
        seconds = train.seconds * max([port.pace, *(out.pace for out in outs)])
        port.is_granted = False
        port.drained += port.length
        port.start, port.length, port.free = now, seconds, now + seconds
        for to, out in zip(train.tree.outs[router.number], outs, strict=True):
            out.is_promised, out.busy = False, now + seconds
            if out.into is None:
                out.drain = max(now + train.first + STORE * self.beat, out.drain) + seconds
                if train.is_last:
                    self.wires.delivered(train.number, router.number, out.drain)
                continue
            out.written += out.length
            out.start, out.length = now, seconds
            self.wires.crosses(train, router.number, to, now, seconds)
            self._arrive(out.into, train, now + self.wires.onward(router.number, to))
        if port.queue:
            ready, following, its = port.queue[0]
            ready = max(ready, now + max(seconds - SLACK * self.beat, 0.0) + CHECK * self.beat)
            port.queue[0] = ready, following, its
            self._wake(router, ready)
        if router.holds_up:
            self._wake(router, now + self.beat)
        if port.source != router.number:
            before = self.routers[port.source]
            out = before.outputs[router.number]
            if out.waits:
                out.waits = False
                self._wake(before, now + self.beat)
