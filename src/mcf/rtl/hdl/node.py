"""The node's network half, whole: the core and the links to its four neighbours."""

from amaranth.hdl import Cat, Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.hdl.core import NUM_LINKS, PORTS, Core
from mcf.rtl.hdl.credit_link import CreditLink, link_word


class Node(Component):
    """As the core (hdl.core), but the neighbours are wires: `tx` and `rx`, a link word in each cycle with `valid`.

    `depth` beats wait unacknowledged on a link at most.
    """

    def __init__(self, depth: int = 32) -> None:
        self.depth = depth
        wires = stream.Signature(link_word(depth))
        super().__init__({**PORTS, "tx": Out(wires).array(NUM_LINKS), "rx": In(wires).array(NUM_LINKS)})

    def elaborate(self, platform: object) -> Module:
        """Join the core and its links."""
        m = Module()
        m.submodules.core = core = Core()
        links = [CreditLink(self.depth) for _ in range(NUM_LINKS)]
        for i, link in enumerate(links):
            m.submodules[f"link_{i}"] = link
            connect(m, core.links_out[i], link.packets)
            connect(m, link.delivered, core.links_in[i])
            connect(m, link.tx, flipped(self.tx[i]))
            connect(m, flipped(self.rx[i]), link.rx)
        m.d.comb += [core.links_bad.eq(Cat(link.bad for link in links))]
        m.d.comb += [core.links_resent.eq(Cat(link.resent for link in links))]
        for name, member in PORTS.items():
            inside, outside = getattr(core, name), getattr(self, name)
            if member.is_port:
                m.d.comb += outside.eq(inside) if member.flow == Out else inside.eq(outside)
            elif member.flow == In:
                connect(m, flipped(outside), inside)
            else:
                connect(m, inside, flipped(outside))
        return m
