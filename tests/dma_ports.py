"""Four readers and a writer as one design: what runs on Icarus with another's memory model, and compiled with ours."""

from amaranth.hdl import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from dma_work import NUM_READERS
from mcf.rtl.hdl.axi import AxiRead, AxiWrite, RequestStream
from mcf.rtl.hdl.dma_read import DmaPingPong
from mcf.rtl.hdl.dma_write import DmaWrite


class DmaPorts(wiring.Component):
    """`fetch[i]` -> `beats[i]` over `reads[i]`; `put` and `words` -> `done` over `write`."""

    def __init__(self) -> None:
        super().__init__(
            {
                "fetch": In(RequestStream).array(NUM_READERS),
                "beats": Out(stream.Signature(128)).array(NUM_READERS),
                "bad": Out(NUM_READERS),
                "failed": Out(NUM_READERS + 1),
                "reads": Out(AxiRead).array(NUM_READERS),
                "put": In(RequestStream),
                "words": In(stream.Signature(128)),
                "done": Out(stream.Signature(1, always_ready=True)),
                "write": Out(AxiWrite),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for i in range(NUM_READERS):
            m.submodules[f"reader_{i}"] = reader = DmaPingPong()
            wiring.connect(m, wiring.flipped(self.fetch[i]), reader.requests)
            wiring.connect(m, reader.data, wiring.flipped(self.beats[i]))
            wiring.connect(m, reader.axi, wiring.flipped(self.reads[i]))
            m.d.comb += [self.bad[i].eq(reader.bad), self.failed[i].eq(reader.failed)]
        m.submodules.writer = writer = DmaWrite()
        wiring.connect(m, wiring.flipped(self.put), writer.requests)
        wiring.connect(m, wiring.flipped(self.words), writer.data)
        wiring.connect(m, writer.done, wiring.flipped(self.done))
        wiring.connect(m, writer.axi, wiring.flipped(self.write))
        m.d.comb += self.failed[NUM_READERS].eq(writer.failed)
        return m
