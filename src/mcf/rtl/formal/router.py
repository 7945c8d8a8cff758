"""Properties (1) to (4) of the whole router: each packet once to every member, to nobody else, in order, whole."""

from collections.abc import Sequence

from amaranth.hdl import Const, Module, Mux, Signal, Value

from mcf.rtl.entry import Entry as TableEntry
from mcf.rtl.entry import Port
from mcf.rtl.formal.bench import Bench, always, given, place, stable
from mcf.rtl.golden.packet import Packet
from mcf.rtl.hdl.allocator import Allocator
from mcf.rtl.hdl.ingress import Ingress
from mcf.rtl.hdl.lookup import Entry, Lookup
from mcf.rtl.hdl.router import Router

ROUTES: Sequence[TableEntry] = (
    TableEntry(in_port=Port.WEST, outs=frozenset({Port.EAST, Port.LOCAL})),
    TableEntry(in_port=Port.NORTH, outs=frozenset({Port.EAST})),
)
HEADERS = [[Packet.of({"route_id": route, "tag": tag}, [0]).header for tag in range(4)] for route in range(len(ROUTES))]


class FixedTable(Lookup):
    """The check with a table that is written already."""

    def _table(self, m: Module, route: Signal) -> Value:
        word = Signal(Entry)
        words = [entry.pack() for entry in ROUTES]
        with m.Switch(route):
            for number, entry in enumerate(words):
                with m.Case(number):
                    m.d.sync += word.eq(Const(entry, 16))
            with m.Default():
                m.d.sync += word.eq(Const(0, 16))
        return word


class SmallRouter(Router):
    """The router with fixed routes and packets of one payload beat."""

    check = FixedTable

    def __init__(self) -> None:
        super().__init__(depth=16, routes=4, max_beats=1, slack=2)


class TightRouter(SmallRouter):
    """The same with queues of 8 beats, which fill in few cycles: the benches' packets never have a beat too many."""

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.full_from = 8, 8 - 2 * 2 - 4


class RouterBench(Bench):
    """Two inputs send packets when they like; the `watched` one sends one with tag 1, later one with tag 2, among them.

    With `prompt` sinks are always ready, no packet starves once begun, and tag 1 comes first: it must have reached all
    members so many cycles after it was sent.
    """

    def __init__(self, design: type[Router] = SmallRouter, *, watched: int = 0, prompt: int = 0) -> None:
        super().__init__()
        self.design, self.watched, self.prompt = design, watched, prompt

    def build(self, m: Module) -> None:
        """Sources are streams that keep their promise; sinks are free, or always ready where delivery is timed."""
        dut = place(m, "dut", self.design())
        heads = [self._source(m, dut, number, entry.in_port) for number, entry in enumerate(ROUTES)]
        for port in Port:
            m.d.comb += dut.outputs[port].ready.eq(1 if self.prompt else self.free(f"ready_{port.name.lower()}"))
            stable(m, dut.outputs[port])
            always(m, ~dut.queues[port].w_en | (dut.queues[port].level != dut.depth))
            self._sink(m, dut, port, heads[self.watched])

    def _source(self, m: Module, dut: Router, number: int, port: Port) -> Value:
        """Headers and payloads by turns; returns the cycles since the first tagged packet was sent whole."""
        stream, at_header, tag, sent = dut.inputs[port], Signal(init=1), self.free(f"tag_{number}", 2), Signal(2)
        valid, waited, before = self.free(f"valid_{number}"), Signal(), Signal(2)
        m.d.comb += [stream.valid.eq(valid), stream.payload.last.eq(~at_header)]
        with m.Switch(tag):
            for value, word in enumerate(HEADERS[number]):
                with m.Case(value):
                    m.d.comb += stream.payload.data.eq(Mux(at_header, word, 0))
        passes = valid & stream.ready
        m.d.sync += [waited.eq(valid & ~stream.ready), before.eq(tag)]
        given(m, ~waited | (valid & (tag == before)))
        given(m, (tag == 0) | ((sent + 1 == tag) & (tag != 3)) if number == self.watched else tag == 0)
        if self.prompt:
            given(m, at_header | valid)  # as the packetizer promises: what has begun does not starve
        if self.prompt and number == self.watched:
            given(m, ~(valid & at_header & (sent == 0)) | (tag == 1))  # nothing of its own is ahead of it
        with m.If(passes):
            m.d.sync += at_header.eq(~at_header)
            with m.If(at_header & (tag != 0)):
                m.d.sync += sent.eq(tag)
        age = Signal(6)
        with m.If((sent != 0) & (at_header | (age != 0)) & ~age.all()):
            m.d.sync += age.eq(age + 1)
        return age

    def _sink(self, m: Module, dut: Router, port: Port, age: Value) -> None:
        stream, at_header, seen = dut.outputs[port], Signal(init=1), Signal(2)
        tag = stream.payload.data[104:106]
        member = port in ROUTES[self.watched].outs
        arrives = stream.valid & at_header & (tag != 0)
        always(m, ~arrives | ((tag == seen + 1) if member else 0))
        always(m, ~stream.valid | (stream.payload.last == ~at_header))
        with m.If(stream.valid & stream.ready):
            m.d.sync += at_header.eq(stream.payload.last)
            with m.If(arrives):
                m.d.sync += seen.eq(tag)
        if self.prompt and member:
            always(m, (age <= self.prompt) | (seen != 0))


class NeverFull(TightRouter):
    """A mutant: an output is given whether it has room or not."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = self.full_from = 4


class BargesIn(Ingress):
    """A mutant: a packet starts before the one ahead of it has left the output."""

    def _check(self, m: Module, held: Signal, is_free: Value, start: Signal, beats: Signal) -> None:
        super()._check(m, held, Const(1), start, beats)


class Mixing(SmallRouter):
    """A mutant: packets mix in an output."""

    ingress = BargesIn


class FirstOnly(Allocator):
    """A mutant: only the first input is ever granted anything."""

    def _fits(self, m: Module, turn: Signal) -> tuple[Value, Value]:
        fits, stays = super()._fits(m, turn)
        return fits & 1, stays


class OneSided(SmallRouter):
    """A mutant: packets of other inputs wait for ever."""

    allocator = FirstOnly
