"""The links of a mesh: plain, or with the link layer at both ends; what goes wrong on them, and what they count."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mcf.errors import RunError, UserError
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.entry import Port
from mcf.rtl.faults import LinkFault, LinkKind
from mcf.rtl.golden.credit_link import BEAT_BITS, word_fields
from mcf.rtl.hdl.credit_link import DEPTH, CreditLink
from mcf.rtl.hdl.datapath import NEIGHBOURS
from mcf.rtl.mesh.library import Mesh as Instances
from mcf.rtl.routes import Mesh

LAST_BIT = 128  # of a beat
_WORD_BITS = sum(word_fields(DEPTH).values())
PATIENCE = 50_000  # cycles without a beat on any link, while something still tries, beside what wires take
ROUNDS = 6  # trips along a wire that count as one beat's way: some are lost to noise
MAX_LATENCY = 1_000_000  # cycles: 5 ms at the clock that is assumed
_SLACK = 64  # words that a wire holds more than its latency: doubled ones
Link = tuple[int, int]


class LinkUse(NamedTuple):
    """One link: beats that left, cycles in which one waited; beats sent again, words refused on arrival, words lost."""

    moved: int
    stalled: int
    resent: int = 0
    refused: int = 0
    lost: int = 0


@dataclass(frozen=True, kw_only=True)
class _Way:
    """Numbers of one direction: where beats leave the core, where words or beats cross, where they enter the other."""

    start: int
    wire: int
    end: int
    resent: int | None = None
    refused: int | None = None


class Links:
    """Both directions between all neighbours. `latency` in cycles (at least 1 with the link layer), `stall` the chance
    that a plain link refuses a beat in a cycle, `noise` the chance that a word is damaged, lost or doubled. Raises
    UserError for what these cannot be. `patience`: how many cycles may go by without a beat on any link.
    """

    def __init__(
        self,
        instances: Instances,
        mesh: Mesh,
        cores: Sequence[int],
        *,
        kind: LinkKind = LinkKind.PLAIN,
        latency: int = 1,
        stall: float = 0.0,
        faults: Sequence[LinkFault] = (),
        noise: float = 0.0,
    ) -> None:
        _check(latency=latency, stall=stall, noise=noise)
        self.instances, self.mesh, self.cores = instances, mesh, cores
        self.patience = PATIENCE + ROUNDS * max(latency - 1, 0)
        edges = list(self._edges())
        if kind is LinkKind.CREDIT:
            library = compile_module(CreditLink(), name=CreditLink.__name__)
            ends = {(a, port): instances.instance(library) for a, _, port in edges}
            self.ways = {(a, b): self._credit(ends, a, b, port, max(latency, 1)) for a, b, port in edges}
        else:
            self.ways = {(a, b): self._plain(a, b, port, latency) for a, b, port in edges}
        num_bits = _WORD_BITS if kind is LinkKind.CREDIT else BEAT_BITS
        for way in self.ways.values():
            self._disturb(way, stall if kind is LinkKind.PLAIN else 0.0, noise, num_bits)
        for fault in faults:
            instances.fault(self.ways[fault.a, fault.b].wire, fault.kind, fault.at, fault.arg)
        self._before = self._counts()

    def use(self) -> dict[Link, LinkUse]:
        """What each link has counted so far."""
        return {link: use for link, (use, _) in self._counts().items()}

    def check_progress(self) -> None:
        """Raise RunError naming a link where no link has moved a beat since the last call."""
        before, now = self._before, self._counts()
        self._before = now
        if sum(use.moved for use, _ in now.values()) == sum(use.moved for use, _ in before.values()):
            raise RunError(f"nothing has moved for {self.patience:,} cycles: {self._blame(before, now)}")

    def check_losses(self) -> None:
        """Raise RunError naming the first link that lost something."""
        for (a, b), use in self.use().items():
            if use.lost:
                raise RunError(f"link {a} > {b} lost {use.lost:,} words for good: expected every packet to arrive")

    def _blame(self, before: "_Counts", now: "_Counts") -> str:
        """A beat that is sent again and not refused is lost on its way; if it is refused, its acknowledgement is."""
        for (a, b), (use, _) in now.items():
            if use.resent > before[a, b][0].resent:
                a, b = (a, b) if use.refused == before[a, b][0].refused else (b, a)
                return f"link {a} > {b} is silent; expected node {b} to hear from node {a} again"
        for (a, b), (_, waited) in now.items():
            if waited > before[a, b][1]:
                return f"link {a} > {b} is full; expected node {b} to take what waits there"
        return "expected the nodes to come to rest"

    def _counts(self) -> "_Counts":
        return {link: self._count(way) for link, way in self.ways.items()}

    def _count(self, way: _Way) -> tuple[LinkUse, int]:
        """What a direction counted, and cycles in which a beat waited to enter the core."""
        start, end = self.instances.counts(way.start), self.instances.counts(way.end)
        resent, refused = (0 if n is None else self.instances.pulses(n) for n in (way.resent, way.refused))
        lost = self.instances.counts(way.wire).lost
        return LinkUse(start.moved, start.stalled, resent, refused, lost), end.stalled

    # --- building ---

    def _edges(self) -> Iterator[tuple[int, int, Port]]:
        for a in range(self.mesh.num_nodes):
            for port in NEIGHBOURS:
                b = self.mesh.neighbour(a, port)
                if b is not None:
                    yield a, b, port

    def _plain(self, a: int, b: int, port: Port, latency: int) -> _Way:
        goal = self.cores[b], f"links_in__{int(port.opposite)}"
        depth = latency + 1 if latency else 0
        link = self.instances.link(self._out(a, port), goal, latency=latency, depth=depth, last_bit=LAST_BIT)
        return _Way(start=link, wire=link, end=link)

    def _credit(self, ends: dict[tuple[int, Port], int], a: int, b: int, port: Port, latency: int) -> _Way:
        """Core a -> its end of the link -> a wire -> the end at core b -> core b."""
        mine, theirs = ends[a, port], ends[b, port.opposite]
        goal = self.cores[b], f"links_in__{int(port.opposite)}"
        return _Way(
            start=self.instances.link(self._out(a, port), (mine, "packets"), last_bit=LAST_BIT),
            wire=self.instances.link((mine, "tx"), (theirs, "rx"), latency=latency, depth=latency + _SLACK),
            end=self.instances.link((theirs, "delivered"), goal),
            resent=self.instances.lead_pulses((mine, "resent"), (self.cores[a], "links_resent"), port),
            refused=self.instances.lead_pulses((theirs, "bad"), (self.cores[b], "links_bad"), port.opposite),
        )

    def _out(self, node: int, port: Port) -> tuple[int, str]:
        return self.cores[node], f"links_out__{int(port)}"

    def _disturb(self, way: _Way, stall: float, noise: float, num_bits: int) -> None:
        if stall:
            self.instances.stall_link(way.wire, stall)
        if noise:
            self.instances.noise(way.wire, noise, num_bits=num_bits)


def _check(*, latency: int, stall: float, noise: float) -> None:
    if not 0 <= latency <= MAX_LATENCY:
        raise UserError(f"got links of latency {latency}: expected 0 to {MAX_LATENCY:,} cycles")
    for name, share in (("stall", stall), ("noise", noise)):
        if not 0 <= share <= 1:  # nor what is no number
            raise UserError(f"got {name} = {share}: expected a share, 0 to 1")


_Counts = dict[Link, tuple[LinkUse, int]]
