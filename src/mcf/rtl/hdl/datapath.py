"""The datapath of a node: items of the control plane become packets, packets that arrive reach whom they are for.

Out: items -> all-to-all -> packetizer, whose payload an outside producer fetches -> router. In: router -> dispatch ->
data for the compute half, states for the reduction unit, control: events, ends of copies. A merged state goes back into
the router, as a packet of its own: to the node itself, or to its parent in a tree. Nothing that comes in ever waits for
something to go out.
"""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.entry import Port
from mcf.rtl.hdl.a2a import AllToAll
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.completions import Issue
from mcf.rtl.hdl.csr import layout_of, request_of
from mcf.rtl.hdl.desc_ring import Item
from mcf.rtl.hdl.dispatch import Dispatch
from mcf.rtl.hdl.join import Join
from mcf.rtl.hdl.kv_dir import Answer, Ask
from mcf.rtl.hdl.kv_port import KvPort
from mcf.rtl.hdl.notices import TAG_BITS, Notices
from mcf.rtl.hdl.packetizer import Packetizer
from mcf.rtl.hdl.perf import Amounts
from mcf.rtl.hdl.reduce import Reduce
from mcf.rtl.hdl.router import Router
from mcf.rtl.registers import BY_NAME, WINDOW_BY_NAME

NEIGHBOURS = (Port.NORTH, Port.EAST, Port.SOUTH, Port.WEST)
Fetch = data.StructLayout({"address": 40, "beats": 16})
# Towards the compute half: of the datapath, and of the core around it.
COMPUTE_PORTS = {
    "fetch": Out(stream.Signature(Fetch)),
    "payload": In(BeatStream),
    "kv": Out(BeatStream),
    "control": Out(BeatStream),
    "kv_ops": In(stream.Signature(Ask)),
    "kv_results": Out(stream.Signature(Answer)),
}


class Datapath(Component):
    """Ports, beside those of the core (hdl.core): what goes to the control plane and comes from it.

    `items` are sent in order; each packet's `issued` entry leaves as it is handed to the packetizer, and `retired`
    pulses when its last beat has left, or when it was dropped for a payload of another length. `node` is the identity:
    `src` of what is sent. `arrivals` are tags of BARRIER packets, `sets` events of CREDIT packets. `amounts` and
    `errors` are a cycle late.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "links_in": In(BeatStream).array(len(NEIGHBOURS)),
                "links_out": Out(BeatStream).array(len(NEIGHBOURS)),
                **COMPUTE_PORTS,
                "items": In(stream.Signature(Item)),
                "issued": Out(stream.Signature(Issue)),
                "retired": Out(1),
                "arrivals": Out(stream.Signature(TAG_BITS)),
                "sets": Out(stream.Signature(TAG_BITS)),
                "routes": In(request_of(WINDOW_BY_NAME["routes"])),
                "slots": In(request_of(WINDOW_BY_NAME["slots"])),
                "armed": Out(layout_of(BY_NAME["slots_armed"])),
                "kv_asks": In(stream.Signature(Ask, always_ready=True)),
                "kv_answer": Out(layout_of(BY_NAME["kv_answer"])),
                "node": In(layout_of(BY_NAME["node"])),
                "amounts": Out(Amounts),
                "errors": Out(layout_of(BY_NAME["errors"])),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Join the modules."""
        m = Module()
        m.submodules.a2a, m.submodules.packetizer = self._a2a, self._packetizer = AllToAll(), Packetizer()
        m.submodules.join, m.submodules.router = self._join, self._router = Join(), Router()
        m.submodules.dispatch, m.submodules.notices = self._dispatch, notices = Dispatch(), Notices()
        m.submodules.reduce, m.submodules.directory = self._reduce, self._directory = Reduce(), KvPort()
        router, dispatch, directory = self._router, self._dispatch, self._directory
        for port in NEIGHBOURS:
            connect(m, flipped(self.links_in[port]), router.inputs[port])
            connect(m, router.outputs[port], flipped(self.links_out[port]))
        for a, b in (
            (flipped(self.items), self._a2a.items),
            (flipped(self.payload), self._packetizer.payload),
            (self._packetizer.packets, self._join.inputs[0]),
            (self._reduce.merged, self._join.inputs[1]),
            (self._join.output, router.inputs[Port.LOCAL]),
            (router.outputs[Port.LOCAL], dispatch.packets),
            (dispatch.kv, flipped(self.kv)),
            (dispatch.reduce, self._reduce.packets),
            (dispatch.control, notices.packets),
            (notices.others, flipped(self.control)),
            (notices.arrivals, flipped(self.arrivals)),
            (notices.sets, flipped(self.sets)),
            (notices.copies, directory.packets),
            (flipped(self.kv_ops), directory.ops),
            (directory.results, flipped(self.kv_results)),
            (flipped(self.kv_asks), directory.asks),
        ):
            connect(m, a, b)
        m.d.comb += self.kv_answer.eq(directory.answer)
        self._tables(m)
        self._outward(m)
        self._count(m)
        return m

    def _tables(self, m: Module) -> None:
        routes, slots = self._router.write, self._reduce.write
        m.d.comb += [
            *(routes.valid.eq(self.routes.valid), routes.p.index.eq(self.routes.p.index)),
            Value.cast(routes.p.entry).eq(self.routes.p.data),
            *(slots.valid.eq(self.slots.valid), Value.cast(slots.payload).eq(self.slots.p.data)),
            self.armed.armed.eq(self._reduce.busy),
        ]

    def _outward(self, m: Module) -> None:
        """A packet goes three ways at once: header, request for payload if it has any, what is to follow it."""
        item, meta = self._a2a.unicasts, self._packetizer.meta
        has_payload, can_go = Signal(), Signal()
        m.d.comb += [
            *(self._a2a.node.eq(self.node.id), self._a2a.last.eq(self.node.last)),
            has_payload.eq(item.p.beats != 0),
            can_go.eq(item.valid & (self.fetch.ready | ~has_payload)),
            Value.cast(meta.payload).eq(item.p.meta),
            meta.payload.src.eq(self.node.id),
            *(self.fetch.p.address.eq(item.p.address), self.fetch.p.beats.eq(item.p.beats)),
            *(self.issued.p.set.eq(item.p.set), self.issued.p.tag.eq(item.p.tag)),
            self.fetch.valid.eq(item.valid & has_payload & meta.ready & self.issued.ready),
            meta.valid.eq(can_go & self.issued.ready),
            self.issued.valid.eq(can_go & meta.ready),
            item.ready.eq((self.fetch.ready | ~has_payload) & meta.ready & self.issued.ready),
        ]
        m.d.sync += self.retired.eq(_ends(self._packetizer.packets) | self._packetizer.dropped)

    def _count(self, m: Module) -> None:
        router, unit, drops = self._router, self._reduce, self._router.dropped
        lost_state = Value.cast(unit.dropped).any()
        found = {
            "granted": router.granted,
            **{f"dropped_{reason}": drops[reason] for reason in ("header", "route", "port", "length")},
            "dropped_operation": self._dispatch.dropped,
            "dropped_payload": self._packetizer.dropped,
            "dropped_state": lost_state,
            "refused_slot": unit.refused,
            "sent": _ends(self._packetizer.packets) + _ends(unit.merged),
            "received": _ends(router.outputs[Port.LOCAL]),
            "beats_kv": _moves(self._dispatch.kv),
            "beats_state": _moves(self._dispatch.reduce),
            "beats_control": _moves(self._dispatch.control),
            "merged": _ends(unit.merged),
            "kv_done": self._directory.done,
            "kv_refused": self._directory.refused,
            "starved": self._packetizer.starved,
        }
        for port in Port:
            output = router.outputs[port]
            found[f"beats_{port.name.lower()}"] = _moves(output)
            found[f"stalls_{port.name.lower()}"] = output.valid & ~output.ready
        m.d.sync += [self.amounts[name].eq(amount) for name, amount in found.items()]
        m.d.sync += [
            self.errors.dropped.eq(Cat(drops, self._dispatch.dropped, self._packetizer.dropped).any()),
            self.errors.kv_refused.eq(self._directory.refused),
            self.errors.reduce_refused.eq(lost_state | unit.refused),
        ]


def _moves(beats: stream.Interface) -> Value:
    return beats.valid & beats.ready


def _ends(beats: stream.Interface) -> Value:
    return beats.valid & beats.ready & beats.p.last
