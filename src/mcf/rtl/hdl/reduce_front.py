"""The reduction unit's input: which packets count, for which slot, and when a slot has all it waits for."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import data, enum
from amaranth.lib.wiring import Component, In, Out
from amaranth.utils import ceil_log2

from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.meta import Meta
from mcf.rtl.hdl.reduce_slot import CHILDREN_BITS, Progress, SlotConfig, StateBeat
from mcf.schedule.wire import Flags

Dropped = data.StructLayout({"length": 1, "slot": 1, "child": 1})


class Part(enum.Enum):
    """What the next beat is; OTHER: of a packet that is dropped, or longer than it may be."""

    HEADER = 0
    STATE = 1
    BODY = 2
    OTHER = 3


def arrival_layout(slots: int, beats: int) -> data.StructLayout:
    """What the front tells the lanes with each beat: a state beat (`state`) or numbers (`body`) that count."""
    return data.StructLayout(
        {
            "state": 1,
            "body": 1,
            "header": 1,
            "first": 1,
            "reduce_op": Meta["reduce_op"].width,
            "slot": ceil_log2(slots),
            "index": ceil_log2(beats),
            "data": 128,
        }
    )


class ReduceFront(Component):
    """Judges packets beat by beat and keeps count; always ready.

    `slot` addresses the tables combinationally during a header; `config`, `progress` and `armed` are their answers.
    `commit` writes `update` back with a packet's last beat; `complete` pushes `completed` {slot, poisoned}.
    """

    def __init__(self, slots: int, beats: int) -> None:
        self.beats = beats
        slot_bits = ceil_log2(slots)
        super().__init__(
            {
                "packets": In(BeatStream),
                "slot": Out(slot_bits),
                "config": In(SlotConfig),
                "progress": In(Progress),
                "armed": In(1),
                "arrival": Out(arrival_layout(slots, beats)),
                "reading": Out(1),
                "commit": Out(1),
                "update": Out(Progress),
                "complete": Out(1),
                "completed": Out(data.StructLayout({"slot": slot_bits, "poisoned": 1})),
                "dropped": Out(Dropped),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """A state machine over the parts of a packet; what it learns of a packet stands in registers."""
        m = Module()
        self.part, self.live, self.index = Signal(Part), Signal(), Signal(ceil_log2(self.beats))
        self.known, self.shaped = Signal(), Signal()
        self.held, self.need = Signal(Progress), Signal(CHILDREN_BITS)
        self.beat, self.last = Signal(), Signal()
        m.d.comb += [
            self.packets.ready.eq(1),
            self.beat.eq(self.packets.valid),
            self.last.eq(self.packets.payload.last),
            self.arrival.data.eq(self.packets.payload.data),
            self.arrival.index.eq(self.index),
        ]
        m.d.sync += self.dropped.eq(0)
        self._header(m)
        with m.If(self.beat), m.Switch(self.part):
            with m.Case(Part.STATE):
                self._state(m)
            with m.Case(Part.BODY):
                self._body(m)
            with m.Case(Part.OTHER):
                self._other(m)
        self._commit(m)
        return m

    def _header(self, m: Module) -> None:
        header = data.View(Meta, self.packets.payload.data)
        slot_bits = len(self.slot)
        slot, epoch = header.tag[:slot_bits], header.tag[slot_bits:]
        m.d.comb += [self.slot.eq(slot), self.arrival.header.eq(self.beat & (self.part == Part.HEADER))]
        with m.If(self.arrival.header):
            matches = (self.config.epoch == epoch) & (self.config.reduce_op == header.reduce_op)
            m.d.sync += [
                self.arrival.slot.eq(slot),
                self.arrival.reduce_op.eq(header.reduce_op),
                self.shaped.eq(header.len == self.beats + 1),
                self.known.eq(self.armed & matches),
                self.held.eq(self.progress),
                self.held.poisoned.eq(self.progress.poisoned | (header.flags & Flags.POISONED).any()),
                self.need.eq(self.config.children),
                self.arrival.first.eq(self.progress.seen == 0),
                self.index.eq(0),
                self.live.eq(0),
            ]
            with m.If(self.last):
                m.d.sync += self.dropped.length.eq(1)
            with m.Else():
                m.d.sync += self.part.eq(Part.STATE)

    def _state(self, m: Module) -> None:
        """The state beat says which child sends: now the packet counts or it does not."""
        child = data.View(StateBeat, self.packets.payload.data).child
        welcome = Signal()
        m.d.comb += [
            welcome.eq(~self.held.seen.bit_select(child, 1) & (child < self.need)),
            self.arrival.state.eq(self.shaped & self.known & welcome),
        ]
        m.d.sync += [
            self.live.eq(self.arrival.state),
            self.held.seen.eq(self.update.seen),
            self.held.count.eq(self.update.count),
            self.dropped.eq(Cat(~self.shaped, self.shaped & ~self.known, self.shaped & self.known & ~welcome)),
            self.part.eq(Mux(self.last, Part.HEADER, Mux(self.arrival.state, Part.BODY, Part.OTHER))),
        ]

    def _body(self, m: Module) -> None:
        final = self.index == self.beats - 1
        m.d.comb += [self.arrival.body.eq(1), self.reading.eq(~self.arrival.first)]
        m.d.sync += self.index.eq(self.index + 1)
        with m.If(self.last):
            m.d.sync += self.part.eq(Part.HEADER)
        with m.Elif(final):
            m.d.sync += self.part.eq(Part.OTHER)

    def _other(self, m: Module) -> None:
        with m.If(self.last):
            m.d.sync += self.part.eq(Part.HEADER)

    def _commit(self, m: Module) -> None:
        """With the last beat of a packet that counts, its child is ticked off."""
        child = data.View(StateBeat, self.packets.payload.data).child
        state, whole = self.part == Part.STATE, (self.part == Part.BODY) & (self.index == self.beats - 1)
        m.d.comb += [
            self.update.eq(self.held),
            self.update.poisoned.eq(self.held.poisoned | ~whole),
            self.commit.eq(
                self.beat & self.last & (self.part != Part.HEADER) & Mux(state, self.arrival.state, self.live)
            ),
            self.complete.eq(self.commit & (self.update.count == self.need)),
            self.completed.slot.eq(self.arrival.slot),
            self.completed.poisoned.eq(self.update.poisoned),
        ]
        with m.If(state):
            m.d.comb += [
                self.update.seen.bit_select(child, 1).eq(1),
                self.update.count.eq(self.held.count + 1),
            ]
