"""The descriptor ring: a table in block RAM, a loader that runs one descriptor ahead, and a worker that cuts packets.

Software writes the words of a descriptor, then moves `tail`. Golden model: `mcf.rtl.golden.desc_ring.expand`.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.memory import Memory, MemoryData
from amaranth.lib.wiring import In, Out

from mcf.rtl.descriptor import DESCRIPTOR_BITS, META_BITS, TABLE
from mcf.rtl.registers import NUM_DESCRIPTORS
from mcf.schedule.wire import FIELDS, HEADER_BITS, Flags

DescriptorLayout = data.StructLayout({f.name: signed(f.width) if f.is_signed else f.width for f in TABLE})
Item = data.StructLayout({"meta": HEADER_BITS, "address": 40, "beats": 16, "set": 8, "tag": 16})
WORDS_PER_LINE = 2  # the table is read 64 bits a cycle: a descriptor comes in 4
LINE_BITS = 32 * WORDS_PER_LINE
LINES = DESCRIPTOR_BITS // LINE_BITS
BEAT_SHIFT = 4  # bytes of a beat, as a power of two


class DescRing(wiring.Component):
    """Turns descriptors into items, one per packet, in order; each waits for its event first.

    `write` takes 32-bit words of the table, always. `tail` and `head` count descriptors written and finished, modulo
    twice the size. Items carry a header with `hcrc` 0, where the payload lies and its beats, and what to set and to
    report when the packet has left. `bad` pulses for a descriptor that is skipped. One descriptor of one packet takes
    7 cycles, each further packet 2, each further message 2 more.
    """

    def __init__(self, size: int = NUM_DESCRIPTORS) -> None:
        self.size = size
        pointer = (2 * size - 1).bit_length()
        index = (size * DESCRIPTOR_BITS // 32 - 1).bit_length()
        super().__init__(
            {
                "write": In(stream.Signature(data.StructLayout({"index": index, "data": 32}), always_ready=True)),
                "enable": In(1),
                "tail": In(pointer),
                "head": Out(pointer),
                "waits": Out(stream.Signature(8)),
                "items": Out(stream.Signature(Item)),
                "busy": Out(1),
                "finished": Out(1),
                "bad": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Join the table, the loader and the worker."""
        m = Module()
        m.submodules.table = table = Memory(MemoryData(shape=LINE_BITS, depth=self.size * LINES, init=[]))
        loaded = stream.Signature(DescriptorLayout).create()
        self._store(m, table)
        self._load(m, table, loaded)
        self._work(m, loaded)
        return m

    def _store(self, m: Module, table: Memory) -> None:
        port = table.write_port(granularity=32)
        index = self.write.p.index
        m.d.comb += [
            port.addr.eq(index[1:]),
            port.data.eq(self.write.p.data.replicate(WORDS_PER_LINE)),
            port.en.eq(self.write.valid.replicate(WORDS_PER_LINE) & Cat(~index[0], index[0])),
        ]

    def _load(self, m: Module, table: Memory, loaded: stream.Interface) -> None:
        """Fetch the next descriptor as soon as it is written and the last one has been taken."""
        port = table.read_port()
        fetched = Signal.like(self.tail)  # descriptors fetched so far
        line = Signal(range(LINES + 1))
        word = Signal(DESCRIPTOR_BITS)
        m.d.comb += [port.addr.eq(Cat(line[:-1], fetched[:-1])), loaded.payload.as_value().eq(word)]
        with m.FSM(name="loader"):
            with m.State("IDLE"):
                with m.If(self.enable & (fetched != self.tail)):
                    m.d.sync += line.eq(1)
                    m.next = "FETCH"
            with m.State("FETCH"):  # the line asked for in the cycle before is there
                m.d.sync += [line.eq(line + 1), word.eq(Cat(word[LINE_BITS:], port.data))]
                with m.If(line == LINES):
                    m.d.sync += [line.eq(0), fetched.eq(fetched + 1)]
                    m.next = "HOLD"
            with m.State("HOLD"):
                m.d.comb += loaded.valid.eq(1)
                with m.If(loaded.ready):
                    m.next = "IDLE"

    def _work(self, m: Module, loaded: stream.Interface) -> None:
        now = Signal(DescriptorLayout)  # the message at work: header and address move by the steps
        left = Signal(16)  # its beats not yet asked for
        at = Signal(40 - BEAT_SHIFT)  # where they lie, in beats
        tag = Signal(8)
        beats = Signal(16)  # of the packet
        is_end = Signal()  # it ends the message
        most = _field(now.meta, "len")
        is_last = now.repeat == 0
        m.d.comb += [
            self.busy.eq(1),
            self.waits.payload.eq(now.wait_event),
            self.items.p.meta.eq(_header(now.meta, beats, tag, is_end)),
            self.items.p.address.eq(at << BEAT_SHIFT),
            self.items.p.beats.eq(beats),
            self.items.p.set.eq(Mux(is_end & (is_last | now.set_each), now.set_event, 0)),
            self.items.p.tag.eq(Mux(is_end & is_last, now.done_tag, 0)),
        ]
        with m.FSM(name="worker"):
            with m.State("TAKE"):
                m.d.comb += [self.busy.eq(loaded.valid), loaded.ready.eq(1)]
                with m.If(loaded.valid):
                    m.d.sync += now.eq(loaded.payload)
                    m.next = "JUDGE"
            with m.State("JUDGE"):
                is_bad = ((now.beats != 0) & (most == 0)) | now.address[:BEAT_SHIFT].any()
                m.d.comb += self.bad.eq(is_bad)
                self._start(m, now, left, at, tag)
                with m.If(is_bad):
                    m.next = "FINISH"
                with m.Elif(now.wait_event != 0):
                    m.next = "WAIT"
                with m.Else():
                    m.next = "CUT"
            with m.State("WAIT"):
                m.d.comb += self.waits.valid.eq(1)
                with m.If(self.waits.ready):
                    m.next = "CUT"
            with m.State("CUT"):
                m.d.sync += [beats.eq(Mux(left > most, most, left)), is_end.eq(left <= most)]
                m.next = "ASK"
            with m.State("ASK"):
                m.d.comb += self.items.valid.eq(1)
                with m.If(self.items.ready):
                    m.d.sync += [left.eq(left - beats), at.eq(at + beats), tag.eq(tag + 1)]
                    m.next = "CUT"
                    with m.If(is_end):
                        m.next = "STEP"
                    with m.If(is_end & is_last):
                        m.next = "FINISH"
            with m.State("STEP"):
                self._step(m, now)
                m.next = "AGAIN"
            with m.State("AGAIN"):
                self._start(m, now, left, at, tag)
                m.next = "CUT"
                with m.If(now.wait_each & (now.wait_event != 0)):
                    m.next = "WAIT"
            with m.State("FINISH"):
                m.d.comb += self.finished.eq(1)
                m.d.sync += self.head.eq(self.head + 1)
                m.next = "TAKE"

    def _start(self, m: Module, now: data.View, left: Signal, at: Signal, tag: Signal) -> None:
        m.d.sync += [left.eq(now.beats), at.eq(now.address >> BEAT_SHIFT), tag.eq(_field(now.meta, "tag"))]

    def _step(self, m: Module, now: data.View) -> None:
        """Move to the next message; each field of the header wraps round."""
        address = now.address[BEAT_SHIFT:]
        halves = now.meta[FIELDS["is_v"].low : FIELDS["block"].low + FIELDS["block"].width]
        m.d.sync += [now.repeat.eq(now.repeat - 1), address.eq(address + now.step_address)]
        m.d.sync += halves.eq(halves + now.step_half)
        for name in ("layer", "head", "tag"):
            m.d.sync += _field(now.meta, name).eq(_field(now.meta, name) + now[f"step_{name}"])


def _field(meta: Value, name: str) -> Value:
    return meta[FIELDS[name].low : FIELDS[name].high + 1]


def _header(meta: Value, beats: Signal, tag: Signal, is_end: Signal) -> Value:
    """The packet's header: the message's, with the packet's own length, number and end mark."""
    last = FIELDS["flags"].low + Flags.LAST.bit_length() - 1
    low, high = FIELDS["len"].low, FIELDS["tag"].low
    assert high == low + FIELDS["len"].width
    assert high + FIELDS["tag"].width == META_BITS
    return Cat(meta[:last], is_end, meta[last + 1 : low], beats[: FIELDS["len"].width], tag)
