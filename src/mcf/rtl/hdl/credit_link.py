"""The link layer: packets over wires that lose, damage and double words, at one beat per cycle (golden.credit_link).

The two halves share nothing but what travels with each word: the sender's replay window, and the receiver's places.
"""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import Component, In, Out

from mcf.rtl.golden.credit_link import BEAT_BITS, CRC_BITS, seq_bits, word_crc, word_fields
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.crc import affine_crc

DEPTH = 32


def link_word(depth: int) -> data.StructLayout:
    """The layout of a word on the wire."""
    return data.StructLayout(word_fields(depth))


def crc_of(m: Module, word: data.View) -> Value:
    """The CRC that belongs to a word."""
    bits = Value.cast(word)[:-CRC_BITS]
    return affine_crc(m, bits, CRC_BITS, lambda covered: word_crc(covered, len(bits)))


class CreditLink(Component):
    """One end of a link in both directions; `depth` beats wait unacknowledged at most, and as many where they arrive.

    `tx` and `rx` are wires: a word stands there for the cycle in which `valid` is high, whatever `ready` says. With
    nothing to say an end is silent. `bad` pulses with each word dropped as damaged or out of sequence, `resent` with
    each beat sent again. After `timeout` cycles without progress everything unacknowledged is sent again.
    """

    def __init__(self, depth: int = DEPTH, timeout: int = 64) -> None:
        self.depth, self.timeout = depth, timeout
        wire = stream.Signature(link_word(depth))
        super().__init__(
            {
                "packets": In(BeatStream),
                "delivered": Out(BeatStream),
                "tx": Out(wire),
                "rx": In(wire),
                "bad": Out(1),
                "resent": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """Judge what arrives, deliver it, take note of what it says, and send."""
        m = Module()
        bits = seq_bits(self.depth)
        self.base, self.next, self.head, self.expected = (Signal(bits) for _ in range(4))
        self.limit, self.places = Signal(bits, init=self.depth), Signal(bits, init=self.depth)
        self.high = Signal(bits)  # the first number never sent
        self.nak, self.owes, self.asks, self.nak_sent = (Signal() for _ in range(4))
        self.word, self.good, self.damaged = Signal(link_word(self.depth)), Signal(), Signal()
        self._check(m)
        self._send(m)
        self._deliver(m)
        self._progress(m)
        return m

    # --- what arrives ---

    def _check(self, m: Module) -> None:
        """One cycle for the CRC, the next for what it says."""
        self.heard, self.is_heard, self.wrong = Signal.like(self.word), Signal(), Signal(CRC_BITS)
        m.d.comb += self.rx.ready.eq(1)
        m.d.sync += [
            *(self.heard.eq(self.rx.payload), self.is_heard.eq(self.rx.valid)),
            self.wrong.eq(crc_of(m, self.rx.payload) ^ self.rx.payload.crc),
            self.word.eq(self.heard),
            self.good.eq(self.is_heard & ~self.wrong.any()),
            self.damaged.eq(self.is_heard & self.wrong.any()),
        ]

    def _deliver(self, m: Module) -> None:
        """In sequence: into the queue. Else drop it, and ask once to go back."""
        m.submodules.arrived = self.queue = queue = SyncFIFO(width=BEAT_BITS, depth=self.depth)
        beat = self.good & self.word.full
        wanted, refused, missed = Signal(), Signal(), Signal()
        gap = _ahead(self.word.seq, self.expected)
        m.d.comb += [
            wanted.eq(beat & (self.word.seq == self.expected)),
            refused.eq(self.damaged | (beat & ~wanted)),
            missed.eq(self.damaged | (beat & gap.any() & ~gap[-1])),  # and not only come twice
            queue.w_en.eq(wanted),
            queue.w_data.eq(Cat(self.word.data, self.word.last)),
            self.delivered.valid.eq(queue.r_rdy),
            self.delivered.payload.eq(queue.r_data),
            queue.r_en.eq(self.delivered.ready),
        ]
        m.d.sync += [
            self.bad.eq(refused),
            self.expected.eq(self.expected + wanted),
            self.places.eq(self.places + (queue.r_rdy & queue.r_en)),
        ]
        with m.If(wanted):
            m.d.sync += self.nak_sent.eq(0)
        with m.Elif(missed):
            m.d.sync += self.nak_sent.eq(1)
            with m.If(~self.nak_sent):
                m.d.sync += self.nak.eq(1)
        with m.If((self.good & self.word.request) | (beat & ~wanted)):
            m.d.sync += self.owes.eq(1)

    # --- what is sent ---

    def _send(self, m: Module) -> None:
        m.submodules.replay = memory = Memory(shape=BEAT_BITS, depth=self.depth, init=[])
        read, write = memory.read_port(domain="comb"), memory.write_port()
        told_ack, told_limit = Signal.like(self.expected), Signal.like(self.places)
        self.sends, word, speaks = Signal(), Signal(link_word(self.depth)), Signal()
        accepts = self.packets.valid & self.packets.ready
        m.d.comb += [
            self.packets.ready.eq(_ahead(self.head, self.base) != self.depth),
            write.en.eq(accepts),
            write.addr.eq(self.head),
            write.data.eq(self.packets.payload),
            read.addr.eq(self.next),
            self.sends.eq((self.next != self.head) & (self.next != self.limit)),
            Cat(word.data, word.last).eq(read.data),
            word.full.eq(self.sends),
            word.nak.eq(self.nak),
            word.request.eq(self.asks),
            word.seq.eq(self.next),
            word.ack.eq(self.expected),
            word.limit.eq(self.places),
            speaks.eq(
                self.sends
                | self.nak
                | self.owes
                | self.asks
                | (told_ack != self.expected)
                | (told_limit != self.places)
            ),
        ]
        self.said, self.is_said = Signal.like(word), Signal()  # its CRC takes a cycle of its own
        m.d.sync += [self.head.eq(self.head + accepts), self.is_said.eq(speaks), self.tx.valid.eq(self.is_said)]
        with m.If(self.is_said):
            m.d.sync += [self.tx.payload.eq(self.said), self.tx.payload.crc.eq(crc_of(m, self.said))]
        with m.If(speaks):
            m.d.sync += [
                self.said.eq(word),
                told_ack.eq(self.expected),
                told_limit.eq(self.places),
                self.nak.eq(0),
                self.owes.eq(0),
                self.asks.eq(0),
            ]

    def _progress(self, m: Module) -> None:
        """What the other end has and has room for; when to go back."""
        acked = _ahead(self.word.ack, self.base)
        heard, late = Signal(), Signal()
        growth = _ahead(self.word.limit, self.limit)
        grows = self.good & growth.any() & ~growth[-1]
        behind = acked > _ahead(self.next, self.base)
        m.d.comb += heard.eq(self.good & (acked <= _ahead(self.head, self.base)))
        m.d.sync += self.next.eq(self.next + self.sends)
        with m.If(grows):
            m.d.sync += self.limit.eq(self.word.limit)
        with m.If(heard):
            m.d.sync += self.base.eq(self.word.ack)
        with m.If(heard & (self.word.nak | behind)):
            m.d.sync += self.next.eq(self.word.ack)
        with m.Elif(late):
            m.d.sync += self.next.eq(Mux(heard, self.word.ack, self.base))
        again = self.sends & (self.next != self.high)
        m.d.sync += self.resent.eq(again)
        with m.If(self.sends & ~again):
            m.d.sync += self.high.eq(self.high + 1)
        self._timer(m, late, (heard & acked.any()) | grows)

    def _timer(self, m: Module, late: Signal, progress: Value) -> None:
        """Runs while something waits to be sent or acknowledged."""
        left = Signal(range(self.timeout), init=self.timeout - 1)
        waits = self.head != self.base
        m.d.comb += late.eq(waits & (left == 0))
        with m.If(late | progress | ~waits):
            m.d.sync += left.eq(self.timeout - 1)
        with m.Else():
            m.d.sync += left.eq(left - 1)
        with m.If(late):
            m.d.sync += self.asks.eq(1)


def _ahead(one: Value, other: Value) -> Value:
    """By how much a number is ahead of another, modulo their width."""
    return (one - other)[: len(other)]
