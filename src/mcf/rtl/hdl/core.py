"""A node without its links: the control plane, which software reaches over AXI4-Lite, and the datapath it drives."""

from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Member, Out, connect, flipped

from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.command import Command
from mcf.rtl.hdl.control import Control
from mcf.rtl.hdl.csr import AxiLite
from mcf.rtl.hdl.datapath import COMPUTE_PORTS, NEIGHBOURS, Datapath
from mcf.rtl.hdl.events import EVENT_BITS

NUM_LINKS = len(NEIGHBOURS)
# What the node has too; the links to its neighbours are beside these.
PORTS = {
    "axi": In(AxiLite),
    "interrupt": Out(1),
    **COMPUTE_PORTS,
    "sets": In(stream.Signature(EVENT_BITS)),
    "commands": Out(stream.Signature(Command)),
    "compute_waits": In(stream.Signature(EVENT_BITS)),
    "computing": In(1),
    "memory_failed": In(1),
}


class Core(Component):
    """Ports of a node.

    `axi`: all that software does (mcf.rtl.registers); `interrupt` is its level. `links_in`, `links_out`: neighbours,
    north, east, south, west. `fetch` asks for payload at an address, which comes by `payload`, closed by `last`.
    `kv` and `control` are packets for the compute half, `kv_ops` and `kv_results` its way to the replica directory,
    `sets` its events, `commands` what software asks of it, `compute_waits` its waits; it says whether it is
    `computing`, and by `memory_failed` that memory has answered with an error. `links_bad` and `links_resent` are
    pulses of the link layer, a bit per neighbour.
    """

    def __init__(self) -> None:
        links = {"links_in": In(BeatStream).array(NUM_LINKS), "links_out": Out(BeatStream).array(NUM_LINKS)}
        super().__init__({**PORTS, **links, "links_bad": In(NUM_LINKS), "links_resent": In(NUM_LINKS)})

    def elaborate(self, platform: object) -> Module:
        """Join the two halves."""
        m = Module()
        m.submodules.control = control = Control()
        m.submodules.datapath = datapath = Datapath()
        for name in ("fetch", "kv", "control", "kv_results"):
            connect(m, getattr(datapath, name), flipped(getattr(self, name)))
        for name in ("payload", "kv_ops"):
            connect(m, flipped(getattr(self, name)), getattr(datapath, name))
        for i in range(NUM_LINKS):
            connect(m, flipped(self.links_in[i]), datapath.links_in[i])
            connect(m, datapath.links_out[i], flipped(self.links_out[i]))
        for name in ("items", "routes", "slots", "kv_asks"):
            connect(m, getattr(control, name), getattr(datapath, name))
        for name in ("issued", "arrivals"):
            connect(m, getattr(datapath, name), getattr(control, name))
        connect(m, flipped(self.axi), control.axi)
        connect(m, flipped(self.sets), control.sets[0])
        connect(m, control.commands, flipped(self.commands))
        connect(m, flipped(self.compute_waits), control.compute_waits)
        m.d.comb += control.computing.eq(self.computing)
        connect(m, datapath.sets, control.sets[1])
        m.d.comb += [
            *(self.interrupt.eq(control.interrupt), control.retired.eq(datapath.retired)),
            *(datapath.node.eq(control.node), control.armed.eq(datapath.armed)),
            control.kv_answer.eq(datapath.kv_answer),
        ]
        self._count(m, control, datapath)
        return m

    def _count(self, m: Module, control: Control, datapath: Datapath) -> None:
        m.d.comb += [control.amounts.eq(datapath.amounts), control.errors.eq(datapath.errors)]
        bad, resent, is_bad = control.amounts.link_bad, control.amounts.link_resent, control.errors.link
        for total, pulses in ((bad, self.links_bad), (resent, self.links_resent)):
            number = Signal(range(NUM_LINKS + 1))
            m.d.sync += number.eq(sum(pulses[1:], pulses[0]))
            m.d.comb += total.eq(number)
        m.d.comb += [is_bad.eq(bad != 0), control.errors.memory.eq(self.memory_failed)]


def pass_on(m: Module, ports: Mapping[str, Member], inside: Any, outside: Any) -> None:
    """Lead the ports of these names from a component inside to those of the one around it."""
    for name, member in ports.items():
        inner, outer = getattr(inside, name), getattr(outside, name)
        for a, b in zip(inner, outer, strict=True) if member.dimensions else ((inner, outer),):
            if member.is_port:
                m.d.comb += b.eq(a) if member.flow == Out else a.eq(b)
            elif member.flow == In:
                connect(m, flipped(b), a)
            else:
                connect(m, a, flipped(b))
