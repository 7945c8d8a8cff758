"""Property (1) of the link: credit, beats under way and beats that wait make the depth; each beat comes once, in order.

The CRC is left out: a word that the channel damages says so itself. It may lose, damage and double any word.
"""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any
from unittest.mock import patch

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data

from mcf.rtl.formal.bench import Bench, always, given, place, stable
from mcf.rtl.golden.credit_link import CRC_BITS, seq_bits
from mcf.rtl.hdl import credit_link
from mcf.rtl.hdl.credit_link import CreditLink, link_word

DEPTH, TIMEOUT = 2, 4


@dataclass(frozen=True, kw_only=True)
class Channel:
    """Words from one end to the other: the one sent last before this cycle, and whether there is one."""

    last: data.View
    had: Signal


class LinkBench(Bench):
    """Beats from end a to end b, words both ways; one beat is marked."""

    def __init__(self, design: type[CreditLink] = CreditLink) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """Two ends, two channels; what has come out must always be what went in, as far as it has come."""
        a, b = self._ends(m)
        mark = self.free("mark")
        m.d.comb += [
            a.packets.valid.eq(self.free("valid")),
            a.packets.payload.data[0].eq(mark),
            b.delivered.ready.eq(self.free("ready")),
        ]
        self._channel(m, "there", a.tx, b.rx)
        self._channel(m, "back", b.tx, a.rx)
        stable(m, b.delivered)
        self._order(m, a.packets, b.delivered)
        _depth_is_kept(m, _credit(m, a, b))

    def _ends(self, m: Module) -> list[Any]:
        with patch.object(credit_link, "affine_crc", lambda *_: Const(0, CRC_BITS)):
            return [place(m, name, self.design(depth=DEPTH, timeout=TIMEOUT)) for name in "ab"]

    def _channel(self, m: Module, name: str, tx: Any, rx: Any) -> Channel:
        """A word a cycle: the one that is sent, the one before it once more, or none; damage shows in its crc."""
        lost, again, hurt = (self.free(f"{name}_{what}") for what in ("lost", "again", "hurt"))
        last, had = Signal(link_word(DEPTH)), Signal()
        word = Value.cast(rx.payload)
        with m.If(tx.valid):
            m.d.sync += [last.eq(tx.payload), had.eq(1)]
        m.d.comb += [
            word.eq(Mux(tx.valid, Value.cast(tx.payload), Value.cast(last))),
            rx.payload.crc.eq(hurt),
            rx.payload.data[0].eq(Mux(tx.valid, tx.payload.data[0], last.data[0]) ^ hurt),
            rx.valid.eq(Mux(tx.valid, ~lost, had & again)),
        ]
        return Channel(last=last, had=had)

    def _order(self, m: Module, sent: Any, got: Any) -> None:
        marked, came, leaves = Signal(), Signal(), Signal()
        inside, ahead = Signal(range(2 * DEPTH + 2)), Signal(range(2 * DEPTH + 2))
        m.d.comb += [came.eq(sent.valid & sent.ready), leaves.eq(got.valid & got.ready)]
        given(m, ~(sent.payload.data[0] & marked))
        with m.If(came & sent.payload.data[0]):
            m.d.sync += [marked.eq(1), ahead.eq(inside - leaves + 1)]
        with m.Elif(leaves & (ahead != 0)):
            m.d.sync += ahead.eq(ahead - 1)
        m.d.sync += inside.eq(inside + came - leaves)
        always(m, ~leaves | ((inside != 0) & (got.payload.data[0] == (ahead == 1))))


class CreditBench(LinkBench):
    """Beats both ways, by induction: what stands in every register is said so exactly that each cycle proves the next.

    Numbers count beats modulo 4 depths, so "a to b" means the way upward from a.
    """

    def build(self, m: Module) -> None:
        """Two ends that send and read as they like."""
        a, b = self._ends(m)
        for name, end in (("a", a), ("b", b)):
            m.d.comb += [
                end.packets.valid.eq(self.free(f"{name}_valid")),
                end.packets.payload.last.eq(self.free(f"{name}_last")),
                end.delivered.ready.eq(self.free(f"{name}_ready")),
            ]
        there, back = self._channel(m, "there", a.tx, b.rx), self._channel(m, "back", b.tx, a.rx)
        for sender, receiver, beats, answers in ((a, b, there, back), (b, a, back, there)):
            chain = _credit(m, sender, receiver)
            _depth_is_kept(m, chain)
            self._window(m, sender, receiver, chain[-1])
            self._answers(m, sender, receiver, answers)
            self._beats(m, sender, receiver, beats)

    def _window(self, m: Module, sender: Any, receiver: Any, taken: Signal) -> None:
        """The sender keeps at most the depth, from the acknowledged to the accepted; the queue holds what it says."""
        window = [sender.base, sender.next, sender.high, sender.head]
        always(m, _ascending(window, DEPTH))
        always(m, _ascending([sender.base, receiver.expected, sender.high], DEPTH))
        always(m, receiver.queue.level == _to(taken, receiver.expected))

    def _under_way(self, sender: Any, receiver: Any, channel: Channel) -> list[tuple[Value, Any]]:
        """The words from one end to the other by their registers, the oldest first: whether there is one, and what."""
        tx = sender.tx
        places = [(receiver.good, receiver.word), (channel.had, channel.last), (tx.valid, tx.payload)]
        return [*places, (sender.is_said, sender.said)]

    def _answers(self, m: Module, sender: Any, receiver: Any, channel: Channel) -> None:
        """Acknowledgements and credit only grow, from what the sender knows, over words under way, to what is so."""
        for known, name, now in (
            (sender.base, "ack", receiver.expected),
            (sender.limit, "limit", receiver.places),
        ):
            chain = [known]
            for is_there, word in self._under_way(receiver, sender, channel):
                chain.append(Mux(is_there, word[name], chain[-1]))
            always(m, _ascending([*chain, now], DEPTH))

    def _beats(self, m: Module, sender: Any, receiver: Any, channel: Channel) -> None:
        """Beats under way were sent, at most a depth behind what is expected; none is that far before a later one."""
        always(m, ~receiver.good | channel.had)
        same = _carried(receiver.heard) == _carried(channel.last)
        always(m, ~receiver.is_heard | receiver.wrong.any() | (channel.had & same))
        start = (receiver.expected - DEPTH)[: len(receiver.expected)]
        beats = [(is_there & word.full, word.seq) for is_there, word in self._under_way(sender, receiver, channel)]
        for is_there, beat in beats:
            always(m, ~is_there | (_to(start, beat) < _to(start, sender.high)))
        for (is_old, old), (is_new, new) in combinations(beats, 2):
            always(m, ~(is_old & is_new) | (_to(start, old) < _to(start, new) + DEPTH))


def _credit(m: Module, sender: Any, receiver: Any) -> list[Signal]:
    """From above: places given, credit known, beats sent, beats that came, beats taken."""
    taken = Signal(seq_bits(DEPTH))
    m.d.sync += taken.eq(taken + (receiver.delivered.valid & receiver.delivered.ready))
    return [receiver.places, sender.limit, sender.high, receiver.expected, taken]


def _depth_is_kept(m: Module, chain: list[Signal]) -> None:
    """Credit on its way, credit known, beats on their way and beats that wait: each fits, together the depth."""
    parts = [_to(earlier, later) for later, earlier in pairwise(chain)]
    for part in parts:
        always(m, part <= DEPTH)
    always(m, sum(parts, Const(0, 1)) == DEPTH)


def _to(one: Value, other: Value) -> Value:
    return (other - one)[: seq_bits(DEPTH)]


def _ascending(numbers: list[Value], most: int) -> Value:
    """Each number is the one before it or above, the last at most `most` above the first."""
    return sum((_to(one, other) for one, other in pairwise(numbers)), Const(0, 1)) <= most


def _carried(word: data.View) -> Value:
    return Cat(word.full, word.seq, word.ack, word.limit)


class Trusting(CreditLink):
    """A mutant: damaged words are taken."""

    def _check(self, m: Module) -> None:
        super()._check(m)
        m.d.sync += [self.good.eq(self.rx.valid), self.damaged.eq(0)]


class Greedy(CreditLink):
    """A mutant: beats are sent without credit."""

    def _send(self, m: Module) -> None:
        super()._send(m)
        m.d.comb += self.sends.eq(self.next != self.head)


class Generous(CreditLink):
    """A mutant: a place is given back when its beat comes, not when it is taken."""

    def _deliver(self, m: Module) -> None:
        super()._deliver(m)
        m.d.sync += self.places.eq(self.places + (self.good & self.word.full & (self.word.seq == self.expected)))
