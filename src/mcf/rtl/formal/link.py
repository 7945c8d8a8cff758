"""Property (1) of the link: credit, beats under way and beats that wait make the depth; each beat comes once, in order.

The CRC is left out: a word that the channel damages says so itself. It may lose, damage and double any word.
"""

from itertools import pairwise
from typing import Any
from unittest.mock import patch

from amaranth.hdl import Const, Module, Mux, Signal, Value

from mcf.rtl.formal.bench import Bench, always, given, place, stable
from mcf.rtl.golden.credit_link import CRC_BITS, seq_bits
from mcf.rtl.hdl import credit_link
from mcf.rtl.hdl.credit_link import CreditLink

DEPTH, TIMEOUT = 2, 4


class LinkBench(Bench):
    """Beats from end a to end b, words both ways; one beat is marked."""

    def __init__(self, design: type[CreditLink] = CreditLink) -> None:
        super().__init__()
        self.design = design

    def build(self, m: Module) -> None:
        """Two ends, two channels; what has come out must always be what went in, as far as it has come."""
        with patch.object(credit_link, "affine_crc", lambda *_: Const(0, CRC_BITS)):
            a, b = (place(m, name, self.design(depth=DEPTH, timeout=TIMEOUT)) for name in "ab")
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
        self._credit(m, a, b)

    def _channel(self, m: Module, name: str, tx: Any, rx: Any) -> None:
        """A word a cycle: the one that is sent, the one before it once more, or none; damage shows in its crc."""
        lost, again, hurt = (self.free(f"{name}_{what}") for what in ("lost", "again", "hurt"))
        last, had = Signal.like(Value.cast(tx.payload)), Signal()
        word = Value.cast(rx.payload)
        with m.If(tx.valid):
            m.d.sync += [last.eq(tx.payload), had.eq(1)]
        m.d.comb += [
            word.eq(Mux(tx.valid, Value.cast(tx.payload), last)),
            rx.payload.crc.eq(hurt),
            rx.payload.data[0].eq(Mux(tx.valid, tx.payload.data[0], last[0]) ^ hurt),
            rx.valid.eq(Mux(tx.valid, ~lost, had & again)),
        ]

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

    def _credit(self, m: Module, a: Any, b: Any) -> None:
        """Known credit, credit on its way, beats on their way and beats that wait: each fits, together the depth."""
        taken = Signal(seq_bits(DEPTH))
        m.d.sync += taken.eq(taken + (b.delivered.valid & b.delivered.ready))
        chain = [b.places, a.limit, a.high, b.expected, taken]
        for later, earlier in pairwise(chain):
            always(m, (later - earlier)[: len(taken)] <= DEPTH)
        total = sum(((x - y)[: len(taken)] for x, y in pairwise(chain)), Const(0, 1))
        always(m, total == DEPTH)


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
