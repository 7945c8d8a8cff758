"""Nodes with the links to their four neighbours: the network half alone, and a whole one."""

from collections.abc import Callable, Mapping

from amaranth.hdl import Cat, Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Member, Out, connect, flipped

from mcf.rtl.hdl.core import NUM_LINKS, PORTS, Core, pass_on
from mcf.rtl.hdl.credit_link import DEPTH, CreditLink, link_word
from mcf.rtl.hdl.whole import WHOLE_PORTS, Whole


class Linked(Component):
    """What is `inside` has neighbours (`links_in`, `links_out`); here they are wires: `tx` and `rx`, a link word in
    each cycle with `valid`. `depth` beats wait unacknowledged on a link at most.
    """

    def __init__(self, inside: Callable[[], Component], ports: Mapping[str, Member], depth: int) -> None:
        self.inside, self.ports, self.depth = inside, ports, depth
        wires = stream.Signature(link_word(depth))
        super().__init__({**ports, "tx": Out(wires).array(NUM_LINKS), "rx": In(wires).array(NUM_LINKS)})

    def elaborate(self, platform: object) -> Module:
        """Join what is inside and its links."""
        m = Module()
        m.submodules.inside = inside = self.inside()
        links = [CreditLink(self.depth) for _ in range(NUM_LINKS)]
        for i, link in enumerate(links):
            m.submodules[f"link_{i}"] = link
            connect(m, inside.links_out[i], link.packets)
            connect(m, link.delivered, inside.links_in[i])
            connect(m, link.tx, flipped(self.tx[i]))
            connect(m, flipped(self.rx[i]), link.rx)
        m.d.comb += [inside.links_bad.eq(Cat(link.bad for link in links))]
        m.d.comb += [inside.links_resent.eq(Cat(link.resent for link in links))]
        pass_on(m, self.ports, inside, self)
        return m


class NetworkHalf(Linked):
    """The network half of a node: the core (hdl.core) with links."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(Core, PORTS, depth)


class WholeNode(Linked):
    """A node: both halves (hdl.whole) with links."""

    def __init__(self, depth: int = DEPTH) -> None:
        super().__init__(Whole, WHOLE_PORTS, depth)
