"""A whole node but for its links: network half and compute half, joined. Software reaches all of it by one AXI4-Lite
port, memory lies behind five ports that read and one that writes.
"""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.commands import NUM_PORTS, RECORD_ROOM
from mcf.rtl.hdl.axi import AxiRead, AxiWrite
from mcf.rtl.hdl.beat import Beat, BeatStream
from mcf.rtl.hdl.compute import Compute
from mcf.rtl.hdl.core import NUM_LINKS, PORTS, Core, pass_on
from mcf.rtl.hdl.dma_read import DmaPingPong
from mcf.rtl.hdl.fifo import BeatFifo
from mcf.rtl.hdl.payload import Payload

INNER = ("fetch", "payload", "sets", "commands", "compute_waits", "computing", "memory_failed")
OUTER = {name: member for name, member in PORTS.items() if name not in INNER}
MEMORY = {"reads": Out(AxiRead).array(NUM_PORTS + 1), "write": Out(AxiWrite)}
WHOLE_PORTS = {**OUTER, **MEMORY}  # beside the links to the neighbours


class Whole(Component):
    """As the core (hdl.core), with the compute half inside. Payload of packets is read by the last of `reads`; where
    its address has bit 39 it is the next record of a state that the compute half has finished (hdl.payload).

    `watched`: for simulation, with a stream more, `records`, which shows each beat of a record as it leaves the compute
    half and never holds it up.
    """

    def __init__(self, *, watched: bool = False) -> None:
        self.watched = watched
        probe = {"records": Out(stream.Signature(Beat, always_ready=True))} if watched else {}
        links = {"links_in": In(BeatStream).array(NUM_LINKS), "links_out": Out(BeatStream).array(NUM_LINKS)}
        pulses = {"links_bad": In(NUM_LINKS), "links_resent": In(NUM_LINKS)}
        super().__init__({**WHOLE_PORTS, **links, **pulses, **probe})

    def elaborate(self, platform: object) -> Module:
        """Join the halves."""
        m = Module()
        m.submodules.core, m.submodules.compute = core, compute = Core(), Compute()
        m.submodules.payload, m.submodules.reader = payload, reader = Payload(), DmaPingPong()
        m.submodules.records = records = BeatFifo(RECORD_ROOM)
        m.d.comb += [
            *(compute.states.ready.eq(records.level != RECORD_ROOM), records.w_beat.eq(compute.states.payload)),
            records.w_en.eq(compute.states.valid & compute.states.ready),
        ]
        if self.watched:
            m.d.comb += [self.records.payload.eq(compute.states.payload), self.records.valid.eq(records.w_en)]
        for source, sink in (
            *((core.commands, compute.commands), (compute.waits, core.compute_waits), (compute.sets, core.sets)),
            *((core.fetch, payload.fetch), (records.output, payload.states), (payload.payload, core.payload)),
            *((payload.requests, reader.requests), (reader.data, payload.data)),
            *((reader.axi, flipped(self.reads[NUM_PORTS])), (compute.write, flipped(self.write))),
            *((inside, flipped(outside)) for inside, outside in zip(compute.reads, self.reads, strict=False)),
            *((flipped(outside), inside) for inside, outside in zip(core.links_in, self.links_in, strict=True)),
            *((inside, flipped(outside)) for inside, outside in zip(core.links_out, self.links_out, strict=True)),
        ):
            connect(m, source, sink)
        pass_on(m, OUTER, core, self)
        m.d.comb += [core.links_bad.eq(self.links_bad), core.links_resent.eq(self.links_resent)]
        m.d.comb += [core.computing.eq(compute.busy), payload.bad.eq(reader.bad)]
        m.d.sync += core.memory_failed.eq((compute.failed != 0) | reader.failed)
        return m
