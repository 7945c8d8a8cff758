"""The compute half of a node: the engine and the attention unit, joined."""

from amaranth.hdl import Module
from amaranth.lib import stream
from amaranth.lib.wiring import Component, In, Out, connect, flipped

from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.hdl.attention import Attention
from mcf.rtl.hdl.axi import AxiRead, AxiWrite
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.command import Command
from mcf.rtl.hdl.engine import Engine


class Compute(Component):
    """`commands` (mcf.rtl.commands) are worked on in order, `waits` and `sets` are their events; memory lies behind
    `reads` and `write`. `states`: a record of 17 beats for each query head that was finished. `failed` counts what
    memory answered with an error in this cycle, `busy` says that something is not done. Golden model:
    `mcf.rtl.golden.compute`.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "commands": In(stream.Signature(Command)),
                "waits": Out(stream.Signature(8)),
                "sets": Out(stream.Signature(8)),
                "reads": Out(AxiRead).array(NUM_PORTS),
                "write": Out(AxiWrite),
                "states": Out(BeatStream),
                "failed": Out(range(NUM_PORTS + 2)),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Streams alone."""
        m = Module()
        m.submodules.engine = self.engine = engine = Engine()
        m.submodules.attention = attention = Attention()
        for name in ("commands", "waits", "sets", "write"):
            connect(m, getattr(engine, name), flipped(getattr(self, name)))
        for inside, outside in zip(engine.reads, self.reads, strict=True):
            connect(m, inside, flipped(outside))
        pairs = (
            *((engine.heads, attention.commands), (engine.scores, attention.scores)),
            *((engine.value_scales, attention.vscales), (attention.activations, engine.weighted)),
            (engine.sums, attention.partials),
        )
        for source, sink in pairs:
            connect(m, source, sink)
        connect(m, attention.states, flipped(self.states))
        m.d.comb += [self.failed.eq(engine.failed), self.busy.eq(engine.busy)]
        return m
