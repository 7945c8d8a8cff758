"""The reduction unit: states of several children become one, in block floating point, at one beat per cycle.

A packet is a header, a state beat and `beats` beats of 8 numbers (golden.state); its `tag` names a slot. A slot is
armed with the number of children and the result's header. Each child's packet is added into the slot's accumulator as
it arrives; when the last has come, the slot queues for the emitter, and is free again when its result has been read
out. The input never waits: not for the output, not for a set-up. What does not fit is dropped whole and counted; what
is cut short or too long counts as arrived and poisons the result.
"""

from typing import Any

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out, connect, flipped
from amaranth.utils import ceil_log2

from mcf.rtl.golden.state import LANES, MAX_CHILDREN
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.hdl.reduce_emit import ReduceEmit
from mcf.rtl.hdl.reduce_front import Dropped, ReduceFront
from mcf.rtl.hdl.reduce_lanes import ReduceLanes, Sums
from mcf.rtl.hdl.reduce_slot import Progress, SlotConfig, SlotSetup

MIN_BEATS = 4  # fewer, and a slot's next packet would read what the last has not yet written


class Reduce(Component):
    """Merges STATE packets; see the module's text.

    `packets`: always ready. `merged`: results in order of completion. `write`: set-ups, always ready; `refused` pulses
    where the slot is in use or the set-up cannot come true. `busy`: the armed slots. `dropped`: one pulse per packet.
    """

    def __init__(self, lanes: int = LANES, slots: int = 32, beats: int = 16) -> None:
        assert lanes == LANES, "a beat of 128 bits holds 8 numbers"
        assert slots in (2, 4, 8, 16, 32, 64, 128), slots
        assert beats >= MIN_BEATS, beats
        self.slots, self.beats = slots, beats
        super().__init__(
            {
                "packets": In(BeatStream),
                "merged": Out(BeatStream),
                "write": In(stream.Signature(SlotSetup)),
                "busy": Out(slots),
                "dropped": Out(Dropped),
                "refused": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Join front, lanes, emitter and the memories between them."""
        m = Module()
        m.submodules.front = self.front = ReduceFront(self.slots, self.beats)
        m.submodules.lanes = self.lanes = ReduceLanes(self.slots, self.beats)
        m.submodules.emit = self.emit = ReduceEmit(self.slots, self.beats)
        self._streams(m)
        self._accumulators(m)
        self._sums(m)
        self._slots(m)
        self._completions(m)
        return m

    def _streams(self, m: Module) -> None:
        connect(m, self.front.packets, flipped(self.packets))
        connect(m, self.emit.merged, flipped(self.merged))
        m.d.comb += [self.lanes.arrival.eq(self.front.arrival), self.dropped.eq(self.front.dropped)]

    def _accumulators(self, m: Module) -> None:
        depth = self.slots << ceil_log2(self.beats)
        m.submodules.accumulators = memory = Memory(shape=self.lanes.row, depth=depth, init=[])
        read, write = memory.read_port(), memory.write_port()
        m.d.comb += [
            self.emit.blocked.eq(self.front.reading),
            read.en.eq(self.front.reading | self.emit.reading),
            read.addr.eq(Cat(self.emit.index, self.emit.slot)),
            self.lanes.held.eq(read.data),
            self.emit.held.eq(read.data),
            write.en.eq(self.lanes.write),
            write.addr.eq(self.lanes.write_row),
            write.data.eq(self.lanes.write_data),
        ]
        with m.If(self.front.reading):
            m.d.comb += read.addr.eq(Cat(self.front.arrival.index, self.front.arrival.slot))

    def _sums(self, m: Module) -> None:
        m.submodules.sums = memory = Memory(shape=Sums, depth=self.slots, init=[])
        front, emit, write = memory.read_port(domain="comb"), memory.read_port(domain="comb"), memory.write_port()
        m.d.comb += [
            front.addr.eq(self.front.slot),
            self.lanes.held_sums.eq(front.data),
            emit.addr.eq(self.emit.slot),
            self.emit.sums.eq(emit.data),
            write.en.eq(self.lanes.write_sums),
            write.addr.eq(self.lanes.write_slot),
            write.data.eq(self.lanes.sums),
        ]

    def _slots(self, m: Module) -> None:
        """What the host wrote of each slot, what has arrived, and which slots are armed."""
        config, headers, good = self._setup(m)
        m.submodules.progress = memory = Memory(shape=Progress, depth=self.slots, init=[])
        progress, update = memory.read_port(domain="comb"), memory.write_port()
        fresh = Signal(self.slots)  # armed, and nothing has arrived: whatever `progress` says is of another time
        m.d.comb += [
            progress.addr.eq(self.front.slot),
            self.front.config.eq(config[0]),
            self.front.armed.eq(self.busy.bit_select(self.front.slot, 1)),
            update.en.eq(self.front.commit),
            update.addr.eq(self.front.arrival.slot),
            update.data.eq(self.front.update),
            self.emit.config.eq(config[1]),
            self.emit.header.eq(headers),
        ]
        with m.If(~fresh.bit_select(self.front.slot, 1)):
            m.d.comb += self.front.progress.eq(progress.data)
        setup = self.write.payload
        with m.If(self.front.commit):
            m.d.sync += fresh.bit_select(self.front.arrival.slot, 1).eq(0)
        with m.If(self.emit.done):
            m.d.sync += self.busy.bit_select(self.emit.slot, 1).eq(0)
        with m.If(good):
            slot = setup.tag[: ceil_log2(self.slots)]
            m.d.sync += [self.busy.bit_select(slot, 1).eq(1), fresh.bit_select(slot, 1).eq(1)]

    def _setup(self, m: Module) -> tuple[list[Any], Any, Signal]:
        setup, header = self.write.payload, data.View(Meta, self.write.payload.header)
        slot, epoch = setup.tag[: ceil_log2(self.slots)], setup.tag[ceil_log2(self.slots) :]
        m.submodules.config = memory = Memory(shape=SlotConfig, depth=self.slots, init=[])
        m.submodules.headers = headers = Memory(shape=Meta, depth=self.slots, init=[])
        reads, write = [memory.read_port(domain="comb") for _ in range(2)], memory.write_port()
        read_header, write_header = headers.read_port(domain="comb"), headers.write_port()
        possible = (setup.children != 0) & (setup.children <= MAX_CHILDREN) & (header.len == self.beats + 1)
        good = Signal()
        m.d.comb += [
            self.write.ready.eq(1),
            good.eq(self.write.valid & possible & ~self.busy.bit_select(slot, 1)),
            reads[0].addr.eq(self.front.slot),
            reads[1].addr.eq(self.emit.slot),
            read_header.addr.eq(self.emit.slot),
            write.en.eq(good),
            write.addr.eq(slot),
            write.data.eq(
                Cat(epoch, Const(0, 8 - len(epoch)), setup.children, header.reduce_op, setup.child)
            ),  # the order of SlotConfig
            write_header.en.eq(good),
            write_header.addr.eq(slot),
            write_header.data.eq(header),
        ]
        m.d.sync += self.refused.eq(self.write.valid & ~good)
        return [read.data for read in reads], read_header.data, good

    def _completions(self, m: Module) -> None:
        m.submodules.completions = self.completions = queue = SyncFIFO(
            width=len(Value.cast(self.front.completed)), depth=self.slots
        )
        m.d.sync += [queue.w_en.eq(self.front.complete), queue.w_data.eq(self.front.completed)]
        m.d.comb += [
            self.emit.completion.valid.eq(queue.r_rdy),
            self.emit.completion.payload.eq(queue.r_data),
            queue.r_en.eq(self.emit.completion.ready),
        ]
