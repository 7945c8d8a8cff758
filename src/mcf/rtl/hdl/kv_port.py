"""Who may ask the replica directory: the compute half by a stream, software by registers, and packets that arrive."""

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, stream
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.hdl.csr import layout_of
from mcf.rtl.hdl.kv_dir import Answer, Ask, KvDirectory
from mcf.rtl.registers import BY_NAME


class KvPort(Component):
    """The directory with three ways to it; answers go back to whoever asked, each way in its own order.

    `asks` is software's way: a strobe, kept until the directory takes it. The answer stands in `answer`, whose `count`
    moves with each: software writes the next when it has. `packets` are operations of packets, whose answers nobody
    gets: what is refused is counted. They wait for nothing but the directory, and whoever asks by `ops` must take its
    answers without waiting for anything.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "ops": In(stream.Signature(Ask)),
                "results": Out(stream.Signature(Answer)),
                "asks": In(stream.Signature(Ask, always_ready=True)),
                "packets": In(stream.Signature(Ask)),
                "answer": Out(layout_of(BY_NAME["kv_answer"])),
                "done": Out(1),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Software's question goes first, then a packet's; the directory has one operation at a time."""
        m = Module()
        m.submodules.directory = directory = KvDirectory()
        kept, is_kept, is_softwares, by_kept, by_software = Signal(Ask), Signal(), Signal(), Signal(), Signal()
        ops, results = directory.ops, directory.results
        m.d.comb += [self.done.eq(directory.done), self.refused.eq(directory.refused)]
        m.d.comb += [ops.valid.eq(self.ops.valid), ops.payload.eq(self.ops.payload)]
        with m.If(is_kept):
            m.d.comb += [ops.valid.eq(1), ops.payload.eq(kept)]
        m.d.comb += self.ops.ready.eq(ops.ready & ~is_kept)
        with m.If(ops.valid & ops.ready):
            m.d.sync += [by_kept.eq(is_kept), by_software.eq(is_kept & is_softwares), is_kept.eq(0)]
        self._keep(m, kept, is_kept, is_softwares)
        m.d.comb += self.results.payload.eq(results.payload)
        m.d.comb += [self.results.valid.eq(results.valid & ~by_kept), results.ready.eq(self.results.ready | by_kept)]
        with m.If(results.valid & by_software):
            m.d.sync += [self.answer[name].eq(results.payload[name]) for name in ("op", "code", "base", "state")]
            m.d.sync += self.answer.count.eq(self.answer.count + 1)
        return m

    def _keep(self, m: Module, kept: data.View, is_kept: Signal, is_softwares: Signal) -> None:
        """Fill the one place before the directory."""
        strobe, has_strobe = Signal(Ask), Signal()
        m.d.comb += self.packets.ready.eq(~is_kept & ~has_strobe)
        with m.If(~is_kept):
            m.d.sync += [is_softwares.eq(has_strobe), has_strobe.eq(0), is_kept.eq(has_strobe | self.packets.valid)]
            m.d.sync += kept.eq(Mux(has_strobe, strobe, self.packets.payload))
        with m.If(self.asks.valid):
            m.d.sync += [strobe.eq(self.asks.payload), has_strobe.eq(1)]
