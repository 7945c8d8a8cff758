"""A link that loses and damages words, made whole: sequence numbers, a CRC, credits, go-back-N.

A word carries at most one beat (`full`), its number `seq`, and always the receiving side's `ack` (the number it
expects next) and `limit` (the first number for which it has kept no place). `nak` asks to go back to `ack`, `request`
asks for a word in return. Numbers count modulo 4 * depth. Whatever is damaged or out of sequence is dropped; what is
not acknowledged is sent again, after a nak or a time without progress. Both ends start from reset together.
"""

import random
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

BEAT_BITS = 129  # data and the end mark
CRC_BITS = 32


def seq_bits(depth: int) -> int:
    """Bits of a sequence number for a window of `depth` beats, a power of two."""
    assert depth & depth - 1 == 0, depth
    return depth.bit_length() + 1


def word_fields(depth: int) -> dict[str, int]:
    """Names and widths of a link word, from bit 0 on; the CRC covers what stands before it."""
    numbers = dict.fromkeys(("seq", "ack", "limit"), seq_bits(depth))
    return {"data": BEAT_BITS - 1, "last": 1, "full": 1, "nak": 1, "request": 1, **numbers, "crc": CRC_BITS}


def word_crc(covered: int, num_bits: int) -> int:
    """CRC-32 (IEEE 802.3) of the lower bits of a word as little-endian bytes, filled with zeros."""
    return zlib.crc32(covered.to_bytes(-(-num_bits // 8), "little"))


def pack_word(depth: int, values: Mapping[str, int]) -> int:
    """A word as an integer, with its CRC."""
    word, low = 0, 0
    for name, width in word_fields(depth).items():
        if name == "crc":
            return word | word_crc(word, low) << low
        assert 0 <= values[name] < 1 << width, (name, values[name])
        word |= values[name] << low
        low += width
    raise AssertionError("a word ends with its crc")


def unpack_word(depth: int, word: int) -> dict[str, int] | None:
    """The fields of a word; None for one whose CRC does not fit."""
    values, low = {}, 0
    for name, width in word_fields(depth).items():
        values[name] = word >> low & (1 << width) - 1
        low += width
    return values if values["crc"] == word_crc(word & (1 << low - CRC_BITS) - 1, low - CRC_BITS) else None


@dataclass(kw_only=True)
class LinkEnd:
    """One end: beats offered here come out there, in order, once. A beat is an integer of BEAT_BITS.

    `transmit` gives the word to put on the wire now, or None; `receive` takes one from it; `tick` counts idle time.
    """

    depth: int
    timeout: int = 64
    unacked: deque[int] = field(default_factory=deque)  # sent or not, from `base` on
    base: int = 0
    ahead: int = 0  # of those, sent since the last return to `base`
    limit: int = -1
    expected: int = 0
    consumed: int = 0
    arrived: deque[int] = field(default_factory=deque)
    told: tuple[int, int] = (0, 0)
    owes: bool = False
    nak: bool = False
    nak_sent: bool = False
    asks: bool = False
    idle: int = 0
    bad: int = 0
    resent: int = 0

    def __post_init__(self) -> None:
        self.modulus = 1 << seq_bits(self.depth)
        self.limit = self.depth
        self.told = (0, self.depth)

    def offer(self, beat: int) -> bool:
        """Take a beat to send, where the window has room."""
        if len(self.unacked) == self.depth:
            return False
        self.unacked.append(beat)
        return True

    def take(self) -> int | None:
        """The next beat that arrived, or None."""
        if not self.arrived:
            return None
        self.consumed = (self.consumed + 1) % self.modulus
        return self.arrived.popleft()

    def transmit(self) -> int | None:
        """The word for this moment: a beat if one may go, else what the other end should know, else None."""
        seq = (self.base + self.ahead) % self.modulus
        full = self.ahead < len(self.unacked) and seq != self.limit
        news = (self.expected, (self.consumed + self.depth) % self.modulus)
        if not (full or self.owes or self.asks or self.nak or news != self.told):
            return None
        beat = self.unacked[self.ahead] if full else 0
        self.told = news
        flags = {"full": int(full), "nak": int(self.nak), "request": int(self.asks)}
        numbers = {"seq": seq, "ack": news[0], "limit": news[1]}
        self.owes = self.asks = self.nak = False
        self.ahead += full
        data, last = beat & (1 << BEAT_BITS - 1) - 1, beat >> BEAT_BITS - 1
        return pack_word(self.depth, {"data": data, "last": last, **flags, **numbers})

    def receive(self, word: int) -> None:
        """Take a word from the wire."""
        values = unpack_word(self.depth, word)
        if values is None:
            return self._refuse(missed=True)
        self._acknowledge(values)
        self.owes |= bool(values["request"])
        if values["full"] and values["seq"] == self.expected:
            assert len(self.arrived) < self.depth, "a beat came for which no place was kept"
            self.arrived.append(values["data"] | values["last"] << BEAT_BITS - 1)
            self.expected = (self.expected + 1) % self.modulus
            self.nak_sent = False
        elif values["full"]:
            self.owes = True
            self._refuse(missed=(values["seq"] - self.expected) % self.modulus < self.modulus // 2)
        return None

    def tick(self) -> None:
        """A moment passes; after `timeout` of them without progress everything unacknowledged goes again."""
        waiting = self.ahead > 0 or len(self.unacked) > 0
        self.idle = self.idle + 1 if waiting else 0
        if self.idle >= self.timeout:
            self.idle, self.asks = 0, True
            self._go_back()

    def _refuse(self, *, missed: bool) -> None:
        self.bad += 1
        if missed and not self.nak_sent:
            self.nak = self.nak_sent = True

    def _acknowledge(self, values: Mapping[str, int]) -> None:
        count = (values["ack"] - self.base) % self.modulus
        if count <= len(self.unacked):
            for _ in range(count):
                self.unacked.popleft()
            self.base, self.ahead = values["ack"], max(0, self.ahead - count)
            self.idle = 0 if count else self.idle
            if values["nak"]:
                self._go_back()
        growth = (values["limit"] - self.limit) % self.modulus
        if 0 < growth < self.modulus // 2:
            self.limit, self.idle = values["limit"], 0

    def _go_back(self) -> None:
        self.resent += self.ahead
        self.ahead = 0


def lossy(
    rng: random.Random, *, lose: float = 0.0, flip: float = 0.0, double: float = 0.0, num_bits: int = 1
) -> Callable[[int], list[int]]:
    """A channel: one word goes in; none, one (maybe with a flipped bit) or two come out."""

    def pass_on(word: int) -> list[int]:
        if rng.random() < lose:
            return []
        if rng.random() < flip:
            word ^= 1 << rng.randrange(num_bits)
        return [word] * (2 if rng.random() < double else 1)

    return pass_on
