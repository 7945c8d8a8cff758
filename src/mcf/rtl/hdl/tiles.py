"""The tile buffer: a ring of wide beats in UltraRAM. What came once may be read several times before it is let go."""

from amaranth.hdl import Module, Signal
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.gemv import WIDE_BITS

QUEUE = 4  # runs that wait for the one that is read


class TileBuffer(Component):
    """Keeps wide beats in the order of their coming, until they are released.

    `writes`: taken while there is room. `runs`: what to read: `beats` beats (at least 1) from position `start` on; a
    position counts the beats that ever came, modulo 2 * depth. A run waits for beats that have not come. When its last
    beat is read, `release` beats, the oldest, make room. `reads`: the beats, `last` at a run's end, one per cycle.
    """

    def __init__(self, *, width: int = WIDE_BITS, depth: int = 4096) -> None:
        assert depth & (depth - 1) == 0, "expected a power of two"
        self.width, self.depth = width, depth
        self.run = data.StructLayout(
            {"start": range(2 * depth), "beats": range(depth + 1), "release": range(depth + 1)}
        )
        super().__init__(
            {
                "writes": In(stream.Signature(width)),
                "runs": In(stream.Signature(self.run)),
                "reads": Out(stream.Signature(data.StructLayout({"data": width, "last": 1}))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Positions are one bit wider than addresses: behind `written` by up to the depth is what can be read."""
        m = Module()
        m.submodules.ram = ram = Memory(shape=self.width, depth=self.depth, init=[])
        m.submodules.queue = queue = SyncFIFO(width=self.run.size, depth=QUEUE)
        write, read = ram.write_port(), ram.read_port()
        position = range(2 * self.depth)
        written, freed, held = Signal(position), Signal(position), Signal(position)
        head, advance = data.View(self.run, queue.r_data), Signal()
        m.d.comb += [
            *(queue.w_data.eq(self.runs.payload), queue.w_en.eq(self.runs.valid), self.runs.ready.eq(queue.w_rdy)),
            *(held.eq(written - freed), self.writes.ready.eq(~held[-1])),
            *(
                write.en.eq(self.writes.valid & self.writes.ready),
                write.addr.eq(written),
                write.data.eq(self.writes.payload),
            ),
            *(read.en.eq(advance), self.reads.payload.data.eq(read.data)),
        ]
        m.d.sync += written.eq(written + write.en)
        is_open, place = Signal(), Signal(position)
        left, release = (Signal(range(self.depth + 1), name=name) for name in ("left", "release"))
        ahead, is_last = Signal(position), Signal()
        loads, pops = Signal(), Signal()  # a run is loaded; it leaves the queue a cycle later, for the shorter way
        m.d.comb += [
            *(ahead.eq(written - place - 1), is_last.eq(left == 1), read.addr.eq(place)),
            advance.eq(is_open & ~ahead[-1] & (~self.reads.valid | self.reads.ready)),
            *(loads.eq(queue.r_rdy & ~pops & (~is_open | (advance & is_last))), queue.r_en.eq(pops)),
        ]
        m.d.sync += self.reads.valid.eq(advance | (self.reads.valid & ~self.reads.ready))
        with m.If(advance):
            m.d.sync += [place.eq(place + 1), left.eq(left - 1), self.reads.payload.last.eq(is_last)]
            with m.If(is_last):
                m.d.sync += [freed.eq(freed + release), is_open.eq(0)]
        m.d.sync += pops.eq(loads)
        with m.If(loads):
            m.d.sync += [is_open.eq(1), place.eq(head.start), left.eq(head.beats), release.eq(head.release)]
        return m
