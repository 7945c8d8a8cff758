"""What a router does with each packet, without time: where its copies go, or why it is dropped."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mcf.rtl.entry import NUM_PORTS, Port, unpack
from mcf.rtl.golden.packet import Packet, header_ok


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """`outs` is empty where `reason` says why the packet is dropped whole."""

    outs: tuple[Port, ...] = ()
    reason: str = ""


@dataclass(kw_only=True)
class RouterModel:
    """`table`: route -> 16-bit entry; routes left out are invalid. Counts what it drops by reason."""

    table: Mapping[int, int]
    max_beats: int = 64
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("header", "route", "port", "length"), 0))
    aborted: int = 0

    def judge(self, port: Port, header: int) -> Verdict:
        """The check of a header that came in by `port`; of several reasons the first counts."""
        entry = unpack(self.table.get(Packet(header=header).field("route_id"), 0))
        expected = entry["in_port"] == port
        outs = _ports(entry["out_mask"]) if expected else (Port.LOCAL,)
        if not header_ok(header):
            return Verdict(reason="header")
        if not entry["valid"] or not outs or (port != Port.LOCAL and port in outs):
            return Verdict(reason="route")
        if not expected and not entry["children"] >> port & 1:
            return Verdict(reason="port")
        if Packet(header=header).field("len") > self.max_beats:
            return Verdict(reason="length")
        return Verdict(outs=outs)

    def push(self, port: Port, packet: Packet) -> list[tuple[Port, Packet]]:
        """The copies of a packet that came in by `port`; neighbours get a damaged one as it is, the node none."""
        verdict = self.judge(port, packet.header)
        if verdict.reason:
            self.dropped[verdict.reason] += 1
            return []
        if packet.is_whole:
            return [(out, packet) for out in verdict.outs]
        self.dropped["length"] += 1
        self.aborted += Port.LOCAL in verdict.outs
        passed = Packet(header=packet.header, payload=packet.payload[: packet.field("len") + 1])
        return [(out, passed) for out in verdict.outs if out != Port.LOCAL]


def _ports(mask: int) -> tuple[Port, ...]:
    return tuple(Port(n) for n in range(NUM_PORTS) if mask >> n & 1)
