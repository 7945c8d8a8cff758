"""The node's network half without its register map and links: the modules joined, with plain streams at the ends.

Out: descriptors -> ring -> packetizer, whose payload an outside producer fetches -> router. In: router -> dispatch ->
data for the compute half, states for the reduction unit, control. A merged state goes back into the router, as a packet
of its own: to the node itself, or to its parent in a tree. Nothing that comes in ever waits for something to go out.
"""

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.entry import Port
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.desc_ring import DescRing
from mcf.rtl.hdl.dispatch import Dispatch
from mcf.rtl.hdl.join import Join
from mcf.rtl.hdl.kv_dir import KvDirectory
from mcf.rtl.hdl.packetizer import Packetizer
from mcf.rtl.hdl.reduce import Reduce
from mcf.rtl.hdl.router import Router

NEIGHBOURS = (Port.NORTH, Port.EAST, Port.SOUTH, Port.WEST)
Fetch = data.StructLayout({"address": 40, "beats": 16})
COUNT_BITS = 32
DROPS = ("header", "route", "port", "length", "operation", "payload", "slot", "refused", "descriptor")


class Core(Component):
    """Ports of a node.

    `links_in`, `links_out`: the neighbours, north, east, south, west. `ring`, `enable`, `tail`, `head`: descriptors.
    `fetch` asks for payload at an address, which comes by `payload`, closed by `last`. `routes`, `slots`: tables.
    `kv` and `control` are packets for the compute half, `kv_ops` and `kv_results` its replica directory. `drops`
    counts what was dropped whole or refused, `merged` results of the reduction unit; `busy` are its armed slots.
    """

    def __init__(self) -> None:
        self._ring, self._router, self._reduce, self._directory = DescRing(), Router(), Reduce(), KvDirectory()
        super().__init__(
            {
                "links_in": In(BeatStream).array(len(NEIGHBOURS)),
                "links_out": Out(BeatStream).array(len(NEIGHBOURS)),
                "ring": In(self._ring.write.signature.flip()),
                "enable": In(1),
                "tail": In(len(self._ring.tail)),
                "head": Out(len(self._ring.head)),
                "fetch": Out(stream.Signature(Fetch)),
                "payload": In(BeatStream),
                "routes": In(self._router.write.signature.flip()),
                "slots": In(self._reduce.write.signature.flip()),
                "busy": Out(len(self._reduce.busy)),
                "kv": Out(BeatStream),
                "control": Out(BeatStream),
                "kv_ops": In(self._directory.ops.signature.flip()),
                "kv_results": Out(self._directory.results.signature),
                "merged": Out(COUNT_BITS),
                "drops": Out(data.StructLayout(dict.fromkeys(DROPS, COUNT_BITS))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Join the modules."""
        m = Module()
        m.submodules.ring, m.submodules.router = self._ring, self._router
        m.submodules.reduce, m.submodules.directory = self._reduce, self._directory
        m.submodules.packetizer = packetizer = Packetizer()
        m.submodules.dispatch = dispatch = Dispatch()
        m.submodules.join = join = Join()
        self._neighbours(m)
        self._outward(m, packetizer)
        connect(m, packetizer.packets, join.inputs[0])
        connect(m, self._reduce.merged, join.inputs[1])
        connect(m, join.output, self._router.inputs[Port.LOCAL])
        connect(m, self._router.outputs[Port.LOCAL], dispatch.packets)
        connect(m, dispatch.kv, flipped(self.kv))
        connect(m, dispatch.control, flipped(self.control))
        connect(m, dispatch.reduce, self._reduce.packets)
        connect(m, flipped(self.kv_ops), self._directory.ops)
        connect(m, self._directory.results, flipped(self.kv_results))
        connect(m, flipped(self.routes), self._router.write)
        connect(m, flipped(self.slots), self._reduce.write)
        m.d.comb += self.busy.eq(self._reduce.busy)
        self._count(m, packetizer, dispatch)
        return m

    def _neighbours(self, m: Module) -> None:
        for port in NEIGHBOURS:
            connect(m, flipped(self.links_in[port]), self._router.inputs[port])
            connect(m, self._router.outputs[port], flipped(self.links_out[port]))

    def _outward(self, m: Module, packetizer: Packetizer) -> None:
        """An item goes to the packetizer as its header, and outside as a request for payload, if it has any."""
        ring, item = self._ring, self._ring.items
        connect(m, flipped(self.ring), ring.write)
        connect(m, flipped(self.payload), packetizer.payload)
        has_payload = Signal()
        m.d.comb += [
            ring.enable.eq(self.enable),
            ring.tail.eq(self.tail),
            self.head.eq(ring.head),
            ring.waits.ready.eq(0),
            has_payload.eq(item.payload.beats != 0),
            Value.cast(packetizer.meta.payload).eq(item.payload.meta),
            self.fetch.payload.address.eq(item.payload.address),
            self.fetch.payload.beats.eq(item.payload.beats),
            self.fetch.valid.eq(item.valid & has_payload & packetizer.meta.ready),
            packetizer.meta.valid.eq(item.valid & (self.fetch.ready | ~has_payload)),
            item.ready.eq(packetizer.meta.ready & (self.fetch.ready | ~has_payload)),
        ]

    def _count(self, m: Module, packetizer: Packetizer, dispatch: Dispatch) -> None:
        router, unit = self._router.dropped, self._reduce.dropped
        events = {
            "header": router.header,
            "route": router.route,
            "port": router.port,
            "length": router.length,
            "operation": dispatch.dropped,
            "payload": packetizer.dropped,
            "slot": Value.cast(unit).any(),
            "refused": self._reduce.refused,
            "descriptor": self._ring.bad,
        }
        for name, number in events.items():
            m.d.sync += self.drops[name].eq(self.drops[name] + number)
        merged = self._reduce.merged
        m.d.sync += self.merged.eq(self.merged + (merged.valid & merged.ready & merged.payload.last))
