"""The node's router: five ports, multicast by table, virtual cut-through."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.entry import NUM_PORTS, Port
from mcf.rtl.hdl.allocator import Allocator
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.fifo import BeatFifo
from mcf.rtl.hdl.ingress import Ingress
from mcf.rtl.hdl.lookup import Entry, Lookup
from mcf.rtl.hdl.select import pick

Drops = data.StructLayout({"header": 3, "route": 3, "port": 3, "length": 3})


class Router(wiring.Component):
    """Ports 0 to 4 are north, east, south, west and the node itself; each moves a beat per cycle.

    A packet starts when it has all outputs of its route at once and each has room for all of it, so it never stalls on
    its way through the crossbar. Outputs and readys come from registers. Packets with a bad header, an invalid route,
    a wrong port of arrival or more than `max_beats` payload beats are dropped whole. One whose last beat comes too
    early or too late is passed on to neighbours as damaged, since its header has left by then; the local output hands
    out whole packets only and drops it. `dropped` counts the packets dropped in a cycle by reason, damaged ones under
    `length` in each router they pass; `aborted` pulses when the local output takes one back.
    """

    check, ingress, allocator = Lookup, Ingress, Allocator  # its parts

    def __init__(self, *, depth: int = 256, routes: int = 1024, max_beats: int = 64, slack: int = 32) -> None:
        self.depth, self.routes, self.max_beats, self.slack = depth, routes, max_beats, slack
        # a started packet, a granted one and the next: each a header, its payload, one beat too many; 4 beats in flight
        self.full_from = depth - 2 * (max_beats + 2) - 4
        assert self.full_from >= 0, "expected a depth of at least two packets and 4 beats"
        super().__init__(
            {
                "inputs": In(BeatStream).array(NUM_PORTS),
                "outputs": Out(BeatStream).array(NUM_PORTS),
                "write": In(stream.Signature(data.StructLayout({"index": range(routes), "entry": Entry}))),
                "dropped": Out(Drops),
                "aborted": Out(1),
                "granted": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Inputs, check, allocator, crossbar, queues."""
        m = Module()
        m.submodules.lookup = lookup = self.check(routes=self.routes, max_beats=self.max_beats)
        m.submodules.allocator = allocator = self.allocator()
        wiring.connect(m, wiring.flipped(self.write), lookup.write)
        ways_in = [self.ingress(slack=self.slack, max_beats=self.max_beats) for _ in Port]
        queues = self.queues = [BeatFifo(self.depth, whole=port == Port.LOCAL) for port in Port]
        for port in Port:
            m.submodules[f"in_{port.name.lower()}"] = ways_in[port]
            m.submodules[f"out_{port.name.lower()}"] = queues[port]
            wiring.connect(m, wiring.flipped(self.inputs[port]), ways_in[port].input)
            wiring.connect(m, queues[port].output, wiring.flipped(self.outputs[port]))
            self._crossbar(m, port, ways_in, queues[port])
        self._check(m, ways_in, lookup)
        self._allocate(m, ways_in, queues, allocator)
        self._count(m, ways_in, queues, lookup)
        return m

    def _check(self, m: Module, ways_in: list[Ingress], lookup: Lookup) -> None:
        m.d.comb += lookup.waiting.eq(Cat(way.asking for way in ways_in))
        for port, way in zip(Port, ways_in, strict=True):
            m.d.comb += [
                lookup.headers[port].eq(way.header),
                way.taken.eq(lookup.taken[port]),
                way.judged.eq(lookup.done[port]),
                way.outs.eq(lookup.outs),
                way.beats.eq(lookup.beats),
            ]

    def _allocate(self, m: Module, ways_in: list[Ingress], queues: list[BeatFifo], allocator: Allocator) -> None:
        busy, reserved = Signal(NUM_PORTS), Signal(NUM_PORTS)
        starts, ends = (Signal(NUM_PORTS, name=name) for name in ("starts", "ends"))
        for port, way in zip(Port, ways_in, strict=True):
            m.d.sync += allocator.room[port].eq(queues[port].level <= self.full_from)
            m.d.comb += [
                allocator.wanted[port].eq(way.wanted),
                way.grant.eq(allocator.grant[port]),
                way.busy.eq(busy),
                reserved[port].eq(Cat(other.reserved[port] for other in ways_in).any()),
                starts[port].eq(Cat(other.starts[port] for other in ways_in).any()),
                ends[port].eq(Cat(other.ends[port] for other in ways_in).any()),
            ]
        m.d.comb += allocator.waiting.eq(Cat(way.waiting for way in ways_in))
        m.d.comb += allocator.reserved.eq(reserved)
        m.d.sync += busy.eq((busy | starts) & ~ends)

    def _crossbar(self, m: Module, port: Port, ways_in: list[Ingress], queue: BeatFifo) -> None:
        """Route no beat back to the neighbour it came from: four sources are one LUT per bit."""
        sources = [way for other, way in zip(Port, ways_in, strict=True) if other != port or port == Port.LOCAL]
        chosen = [way.dest[port] for way in sources]
        words = [Cat(way.beat, way.abort) for way in sources]
        m.d.comb += [
            queue.w_en.eq(Cat(chosen).any()),
            Cat(queue.w_beat, queue.w_abort).eq(pick(m, chosen, words)),
        ]

    def _count(self, m: Module, ways_in: list[Ingress], queues: list[BeatFifo], lookup: Lookup) -> None:
        found = Signal.like(lookup.dropped)
        m.d.sync += found.eq(lookup.dropped)
        damaged = sum((way.damaged for way in ways_in), found.length)
        m.d.sync += [
            self.dropped.header.eq(found.header),
            self.dropped.route.eq(found.route),
            self.dropped.port.eq(found.port),
            self.dropped.length.eq(damaged),
            self.granted.eq(Cat(way.grant for way in ways_in).any()),
        ]
        m.d.comb += self.aborted.eq(queues[Port.LOCAL].aborted)
