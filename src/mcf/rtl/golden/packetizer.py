"""What the packetizer sends for metas and runs of payload, without time."""

from collections.abc import Iterable, Sequence

from mcf.rtl.golden.packet import Packet, field, with_crc


def join(metas: Iterable[int], runs: Iterable[Sequence[int]], *, max_beats: int = 64) -> tuple[list[Packet], int]:
    """The packets, and how many metas were dropped because their run had another length than they said."""
    rest = iter(runs)
    packets, dropped = [], 0
    for meta in metas:
        num_beats = field(meta, "len")
        run = tuple(next(rest)) if num_beats else ()
        if len(run) != num_beats or num_beats > max_beats:
            dropped += 1
        else:
            packets.append(Packet(header=with_crc(meta), payload=run))
    return packets, dropped
