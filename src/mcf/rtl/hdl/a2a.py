"""All to all: one message in, one packet to each node out, in an order in which no two nodes have the same target."""

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.beat import BEAT_BYTES
from mcf.rtl.hdl.desc_ring import Item
from mcf.rtl.hdl.meta import Meta
from mcf.schedule.wire import FIELDS, Collective

_NODE_BITS = FIELDS["src"].width


class AllToAll(wiring.Component):
    """Stands between the ring and the packetizer; what is not ALL_TO_ALL passes as it is.

    An ALL_TO_ALL item becomes `last` + 1 point-to-point items. The k-th, from 1 on, goes to node (`node` + k) modulo
    (`last` + 1), so the own node comes last and at any time each node receives from one other. Its route is the item's
    `route_id` + the target, its payload the k-th run of `beats` beats from the item's address on. What is to be set and
    reported stands at the last one. One item leaves every other cycle.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "items": In(stream.Signature(Item)),
                "unicasts": Out(stream.Signature(Item)),
                "node": In(_NODE_BITS),
                "last": In(_NODE_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Hold one item; move it from target to target."""
        m = Module()
        held, is_held, spreads = Signal(Item), Signal(), Signal()
        target, left = Signal(_NODE_BITS), Signal(_NODE_BITS)
        is_last = ~spreads | (left == 0)
        m.d.comb += self.items.ready.eq(~is_held)
        with m.If(self.items.valid & ~is_held):
            m.d.sync += [
                held.eq(self.items.payload),
                is_held.eq(1),
                spreads.eq(Meta(self.items.payload.meta).collective == Collective.ALL_TO_ALL),
                target.eq(self._after(self.node)),
                left.eq(self.last),
            ]
        out = self.unicasts
        with m.If(is_held & ~out.valid):
            m.d.sync += [
                out.valid.eq(1),
                is_held.eq(~is_last),
                target.eq(self._after(target)),
                left.eq(left - 1),
                held.address.eq(held.address + held.beats * BEAT_BYTES),
            ]
            m.d.sync += self._item(out.payload, held, spreads, is_last, target)
        with m.If(out.valid & out.ready):
            m.d.sync += out.valid.eq(0)
        return m

    def _after(self, node: Signal) -> Value:
        return Mux(node >= self.last, 0, node + 1)

    def _item(self, out: Signal, held: Signal, spreads: Signal, is_last: Signal, target: Signal) -> list[object]:
        meta, new = Meta(held.meta), Meta(out.meta)
        changed = {
            "dst_node": target,
            "dst_root": self.node,
            "collective": Collective.P2P,
            "route_id": (meta.route_id + target)[: FIELDS["route_id"].width],
        }
        return [
            out.eq(held),
            out.set.eq(Mux(is_last, held.set, 0)),
            out.tag.eq(Mux(is_last, held.tag, 0)),
            *(new[name].eq(Mux(spreads, value, meta[name])) for name, value in changed.items()),
        ]
