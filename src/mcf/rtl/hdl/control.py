"""The control plane of a node: registers, descriptor ring, events, barrier, completions and counters, joined.

Software reaches all of it through one AXI4-Lite port. What it asks for leaves as `items`, one per packet.
"""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from mcf.rtl.hdl.barrier import TAG_BITS, Barrier
from mcf.rtl.hdl.command import Command
from mcf.rtl.hdl.command_ring import CommandRing
from mcf.rtl.hdl.completions import Completions, Issue
from mcf.rtl.hdl.csr import AxiLite, Csr, layout_of, request_of
from mcf.rtl.hdl.desc_ring import DescRing, Item
from mcf.rtl.hdl.events import EVENT_BITS, NUM_SOURCES, Events
from mcf.rtl.hdl.kv_dir import Ask
from mcf.rtl.hdl.perf import Amounts, Perf
from mcf.rtl.registers import BY_NAME, CYCLE_COUNTERS, NUM_COMMANDS, WINDOW_BY_NAME

NUM_OUTSIDE = NUM_SOURCES - 3  # sources of events beside software, completions and the barrier


class Control(wiring.Component):
    """One AXI4-Lite port on one side, items and what the datapath reports on the other.

    What is to follow a packet comes back in `issued`, one entry per packet on its way (where an item becomes several
    packets, the last one carries it), and waits until `retired` says that the packet has left. `sets` are events from
    the compute half and from arrivals. `arrivals` takes the tags of BARRIER packets. `amounts` and `errors` come from
    the datapath; what is known here (cycles, descriptors, waits; descriptor, event, completion) is put in here.
    `routes` and `slots` are the datapath's tables as software writes them, `armed` the slots in use; by `kv_asks` and
    `kv_answer` software asks the replica directory. `interrupt` is a level.
    `commands` are the compute half's, in order; `compute_waits` its waits, `computing` whether it is busy.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "axi": In(AxiLite),
                "items": Out(stream.Signature(Item)),
                "issued": In(stream.Signature(Issue)),
                "retired": In(1),
                "sets": In(stream.Signature(EVENT_BITS)).array(NUM_OUTSIDE),
                "arrivals": In(stream.Signature(TAG_BITS)),
                "amounts": In(Amounts),
                "errors": In(layout_of(BY_NAME["errors"])),
                "routes": Out(request_of(WINDOW_BY_NAME["routes"])),
                "slots": Out(request_of(WINDOW_BY_NAME["slots"])),
                "armed": In(layout_of(BY_NAME["slots_armed"])),
                "kv_asks": Out(stream.Signature(Ask, always_ready=True)),
                "kv_answer": In(layout_of(BY_NAME["kv_answer"])),
                "node": Out(layout_of(BY_NAME["node"])),
                "interrupt": Out(1),
                "commands": Out(stream.Signature(Command)),
                "compute_waits": In(stream.Signature(EVENT_BITS)),
                "computing": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Join the parts."""
        m = Module()
        m.submodules.csr = csr = Csr()
        m.submodules.ring = ring = DescRing()
        m.submodules.events = events = Events()
        m.submodules.barrier = barrier = Barrier()
        m.submodules.completions = completions = Completions()
        m.submodules.perf = perf = Perf()
        m.submodules.command_ring = commands = CommandRing(NUM_COMMANDS)
        for a, b in (
            (wiring.flipped(self.axi), csr.axi),
            (wiring.flipped(self.routes), csr.routes),
            (wiring.flipped(self.slots), csr.slots),
            (wiring.flipped(self.arrivals), barrier.arrivals),
            (wiring.flipped(self.issued), completions.issued),
            (wiring.flipped(self.items), ring.items),
            *((wiring.flipped(outside), port) for outside, port in zip(self.sets, events.sets[3:], strict=True)),
            (barrier.sets, events.sets[1]),
            (completions.sets, events.sets[2]),
            (ring.waits, events.waits),
            (csr.descriptors, ring.write),
            (csr.commands, commands.write),
            (commands.commands, wiring.flipped(self.commands)),
            (wiring.flipped(self.compute_waits), events.other_waits),
            (csr.counters, perf.read),
            (csr.completions, completions.read),
        ):
            wiring.connect(m, a, b)
        m.d.comb += [commands.tail.eq(csr.command_tail.tail), csr.command_head.head.eq(commands.head)]
        m.d.comb += csr.computing.busy.eq(self.computing | commands.commands.valid)
        self._events(m, csr, events, barrier, perf)
        self._ring(m, csr, ring, completions)
        self._counts(m, csr, ring, events, completions, perf)
        return m

    def _events(self, m: Module, csr: Csr, events: Events, barrier: Barrier, perf: Perf) -> None:
        by_software = events.sets[0]  # a strobe is not asked to wait: one is kept until it is taken
        kept = Signal(EVENT_BITS)
        is_kept = Signal()
        m.d.comb += [by_software.payload.eq(kept), by_software.valid.eq(is_kept)]
        with m.If(csr.set_event.valid):
            m.d.sync += [kept.eq(csr.set_event.payload), is_kept.eq(1)]
        with m.Elif(by_software.ready):
            m.d.sync += is_kept.eq(0)
        does_clear = Signal()
        m.d.sync += does_clear.eq(csr.clear.valid & csr.clear.payload)
        m.d.comb += [unit.clear.eq(does_clear) for unit in (events, barrier, perf)]
        m.d.comb += [barrier.peers.eq(csr.barrier.peers), barrier.event.eq(csr.barrier.event)]
        m.d.comb += [csr.status.clearing.eq(events.clearing | perf.clearing), self.node.eq(csr.node)]
        ask = self.kv_asks
        m.d.comb += [
            *(csr.slots_armed.eq(self.armed), csr.kv_answer.eq(self.kv_answer), ask.valid.eq(csr.kv_ask.valid)),
            Cat(ask.p.op, ask.p.owner, ask.p.base).eq(csr.kv_ask.payload),
            ask.p.kv_id.eq(csr.kv_id.kv_id),
        ]

    def _ring(self, m: Module, csr: Csr, ring: DescRing, completions: Completions) -> None:
        clock = Signal(32)
        with m.If(csr.control.count):
            m.d.sync += clock.eq(clock + 1)
        m.d.comb += [
            *(ring.enable.eq(csr.control.enable), ring.tail.eq(csr.ring_tail.tail), csr.ring_head.head.eq(ring.head)),
            *(completions.retired.eq(self.retired), completions.clock.eq(clock), csr.clock.cycles.eq(clock)),
            *(completions.tail.eq(csr.done_tail.tail), csr.done_head.head.eq(completions.head)),
            *(csr.status.busy.eq(ring.busy), csr.status.waiting.eq(ring.waits.valid)),
            *(csr.status.event.eq(ring.waits.payload), csr.completions_data.eq(completions.data)),
        ]
        enough = Mux(csr.irq_coalesce.count == 0, 1, csr.irq_coalesce.count)
        is_due = csr.irq_enable.completions & (completions.waiting >= enough)
        m.d.sync += self.interrupt.eq(is_due | (csr.irq_enable.errors & csr.errors_held))

    def _counts(
        self, m: Module, csr: Csr, ring: DescRing, events: Events, completions: Completions, perf: Perf
    ) -> None:
        waits = ring.waits.valid & ~ring.waits.ready
        of_cycles = {name: self.amounts[name] for name in CYCLE_COUNTERS} | {"cycles": 1, "waits": waits}
        m.d.comb += [
            *(perf.amounts.eq(self.amounts), csr.errors.eq(self.errors), csr.counters_data.eq(perf.data)),
            *(perf.amounts[name].eq(value & csr.control.count) for name, value in of_cycles.items()),
            *(perf.amounts.descriptors.eq(ring.finished), perf.amounts.descriptors_bad.eq(ring.bad)),
            *(csr.errors.descriptor.eq(ring.bad), csr.errors.event.eq(events.lost)),
            csr.errors.completion.eq(completions.lost),
        ]
