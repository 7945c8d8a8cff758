"""The header check that a router's inputs share: CRC, version, length and the route table, one header per cycle."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from mcf.rtl.entry import ENTRY_BITS, NUM_PORTS, Port
from mcf.rtl.hdl.meta import Meta, header_crc
from mcf.rtl.hdl.select import pick
from mcf.schedule.wire import VERSION

Entry = data.StructLayout(ENTRY_BITS)
Drop = data.StructLayout({"header": 1, "route": 1, "port": 1, "length": 1})


class Lookup(wiring.Component):
    """Takes one waiting header, the lowest port's first, and gives its verdict in the next cycle, `done` for its port.

    The verdict: `outs`, the ports that the packet goes to, none where it is to be dropped, and `beats`, its payload.
    `dropped` says with `done` why. `write` sets an entry of the table. All entries are invalid after reset.
    """

    def __init__(self, *, routes: int, max_beats: int) -> None:
        self.routes, self.max_beats = routes, max_beats
        super().__init__(
            {
                "headers": In(Meta).array(NUM_PORTS),
                "waiting": In(NUM_PORTS),
                "taken": Out(NUM_PORTS),
                "done": Out(NUM_PORTS),
                "outs": Out(NUM_PORTS),
                "beats": Out(range(max_beats + 1)),
                "dropped": Out(Drop),
                "write": In(stream.Signature(data.StructLayout({"index": range(routes), "entry": Entry}))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """First cycle: take a header and read the table. Second cycle: judge."""
        m = Module()
        chosen, route = Signal(Meta), Signal(range(self.routes))
        m.d.comb += self.taken.eq(self.waiting & (~self.waiting + 1))
        m.d.comb += chosen.eq(pick(m, list(self.taken), [header.as_value() for header in self.headers]))
        m.d.comb += route.eq(chosen.route_id)
        header, inside = Signal(Meta), Signal()
        m.d.sync += [header.eq(chosen), inside.eq(chosen.route_id < self.routes), self.done.eq(self.taken)]
        entry = self._table(m, route)
        self._judge(m, header, entry, inside)
        return m

    def _table(self, m: Module, route: Signal) -> data.View:
        m.submodules.table = table = Memory(shape=Entry, depth=self.routes, init=[])
        write, read = table.write_port(), table.read_port()
        m.d.comb += [
            self.write.ready.eq(1),
            write.en.eq(self.write.valid),
            write.addr.eq(self.write.payload.index),
            write.data.eq(self.write.payload.entry),
            read.addr.eq(route),
        ]
        return read.data

    def _judge(self, m: Module, header: data.View, entry: data.View, inside: Signal) -> None:
        """The first reason of header, route, port, length counts."""
        expected, child, outs = Signal(), Signal(), Signal(NUM_PORTS)
        crc = Signal(len(header.hcrc))
        m.d.comb += crc.eq(header_crc(m, header))
        port = Signal(range(NUM_PORTS))
        with m.Switch(self.done):
            for number in Port:
                with m.Case(1 << number):
                    m.d.comb += port.eq(number)
        m.d.comb += [
            expected.eq(entry.in_port == port),
            child.eq((self.done[: Port.LOCAL] & entry.children).any()),
            outs.eq(Mux(expected, entry.out_mask, 1 << Port.LOCAL)),
        ]
        back = (self.done[: Port.LOCAL] & outs[: Port.LOCAL]).any()
        bad_header = (crc != header.hcrc) | (header.ver != VERSION)
        bad_route = ~inside | ~entry.valid | ~outs.any() | back
        bad_port = ~(expected | child)
        bad_length = header.len > self.max_beats
        judged, dropped = self.done.any(), Signal(Drop)
        m.d.comb += [
            dropped.header.eq(bad_header),
            dropped.route.eq(~bad_header & bad_route),
            dropped.port.eq(~bad_header & ~bad_route & bad_port),
            dropped.length.eq(~bad_header & ~bad_route & ~bad_port & bad_length),
            self.outs.eq(Mux(dropped.as_value().any(), 0, outs)),
            self.beats.eq(header.len),
            self.dropped.eq(Mux(judged, Cat(dropped.as_value()), 0)),
        ]
