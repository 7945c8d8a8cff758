"""Packets in plain Python: a header word and payload words, and as beats (word, last)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mcf.schedule.crc16 import crc16
from mcf.schedule.wire import CRC_BYTES, FIELDS, HEADER_BYTES, VERSION, pack

Beats = list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A header of 128 bits and the payload's beats of 128 bits; damaged ones are packets too."""

    header: int
    payload: tuple[int, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, int], payload: Iterable[int] = ()) -> "Packet":
        """A packet whose header says how many beats follow, unless `values` sets another `len`."""
        beats = tuple(payload)
        return cls(header=pack({"len": len(beats), **values}), payload=beats)

    def field(self, name: str) -> int:
        """A field of the header, checked or not."""
        return field(self.header, name)

    def beats(self) -> Beats:
        """(word, last) for each beat."""
        words = (self.header, *self.payload)
        return [(word, int(i == len(words) - 1)) for i, word in enumerate(words)]

    @property
    def is_whole(self) -> bool:
        """Say whether as many beats follow the header as it says."""
        return len(self.payload) == self.field("len")


def field(header: int, name: str) -> int:
    """A field of a header word."""
    return header >> FIELDS[name].low & FIELDS[name].limit - 1


def header_ok(header: int) -> bool:
    """Say whether a header's CRC and version are right; codes without a name are not looked at."""
    crc = crc16(header.to_bytes(HEADER_BYTES, "little")[:CRC_BYTES])
    return field(header, "hcrc") == crc and field(header, "ver") == VERSION


def with_crc(header: int) -> int:
    """The header with its CRC in place."""
    low = FIELDS["hcrc"].low
    covered = header & (1 << low) - 1
    return covered | crc16(covered.to_bytes(HEADER_BYTES, "little")[:CRC_BYTES]) << low


def cut(beats: Iterable[tuple[int, int]]) -> list[Packet]:
    """Cut a stream of beats into packets; beats behind the last end mark are left out."""
    out: list[Packet] = []
    words: list[int] = []
    for word, last in beats:
        words.append(word)
        if last:
            out.append(Packet(header=words[0], payload=tuple(words[1:])))
            words = []
    return out
