"""The checks: what is claimed of which small configuration, how far it is tried, and the mutants to be caught."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mcf.rtl.formal.allocator import AllocatorBench, PartOf, Roomless
from mcf.rtl.formal.axi import (
    CrossingRead,
    CrossingWrite,
    Early,
    ReadBench,
    Restless,
    RestlessWrite,
    RoomlessRead,
    Talkative,
    Unlimited,
    UnlimitedWrite,
    WriteBench,
)
from mcf.rtl.formal.bench import Bench
from mcf.rtl.formal.fifo import FifoBench, RoomBench, Uncommitted, WholeBench
from mcf.rtl.formal.kv import ForgetsOwners, FreesAtOnce, KvBench, ServesDraining, TakesTwice
from mcf.rtl.formal.link import CreditBench, Generous, Greedy, LinkBench, Trusting
from mcf.rtl.formal.reduce import CountsTwice, Forgets, Hasty, Polite, ReduceBench, Repeats
from mcf.rtl.formal.router import Mixing, NeverFull, OneSided, RouterBench, TightRouter


@dataclass(frozen=True, kw_only=True)
class Check:
    """One bench: its claim must hold for `num_steps` cycles, or, of a mutant, be broken within them.

    `forever`: by induction over `num_steps`, so for runs of any length. `quick`: takes seconds.
    """

    properties: str
    claim: str
    bench: Callable[[], Bench]
    num_steps: int
    mutant: bool = False
    forever: bool = False
    quick: bool = False


def _mutant(of: Check, what: str, bench: Callable[[], Bench], *, quick: bool = True, num_steps: int = 0) -> Check:
    steps = num_steps or of.num_steps
    return Check(properties=of.properties, claim=what, bench=bench, num_steps=steps, mutant=True, quick=quick)


_FIFO = Check(
    properties="1, 2, 4",
    claim="a queue is never over full, keeps what it offers, and gives each beat once and in order",
    bench=FifoBench,
    num_steps=10,
    quick=True,
)
_ROOM = Check(
    properties="1, 2",
    claim="a queue holds what went in and has not come out, at most its depth, and keeps what it offers",
    bench=RoomBench,
    num_steps=3,
    forever=True,
    quick=True,
)
_WHOLE = Check(
    properties="2, 3",
    claim="a queue of whole packets never shows one that is taken back",
    bench=WholeBench,
    num_steps=10,
    quick=True,
)
_ALLOCATOR = Check(
    properties="5",
    claim="a grant gives all outputs of the route, each with room and kept by nobody, to one packet at a time",
    bench=AllocatorBench,
    num_steps=14,
    quick=True,
)
_ROUTER = Check(
    properties="1, 2, 3, 4",
    claim="a packet leaves once at most by each port of its route, by no other, in order, whole; no queue is over full",
    bench=partial(RouterBench, TightRouter),
    num_steps=14,
    quick=True,
)
_DELIVERED = Check(
    properties="3",
    claim="a packet has left by all ports of its route 15 cycles after it came, where readers are willing",
    bench=partial(RouterBench, prompt=15),
    num_steps=19,
)
_LINK = Check(
    properties="1, 2, 4",
    claim="credit, beats under way and beats that wait make the depth; each beat comes once and in order",
    bench=LinkBench,
    num_steps=11,
    quick=True,
)
_CREDIT = Check(
    properties="1",
    claim="credit, beats under way and beats that wait make the depth, with beats both ways",
    bench=CreditBench,
    num_steps=5,
    forever=True,
    quick=True,
)
_KV = Check(
    properties="2, 6",
    claim="the directory keeps owners, serves no reader while draining, frees with no reader left, holds none twice",
    bench=KvBench,
    num_steps=16,
    quick=True,
)
_REDUCE = Check(
    properties="7",
    claim="a slot's result leaves after all its children, once, whole; the input never waits; no queue overflows",
    bench=ReduceBench,
    num_steps=13,
    quick=True,
)
_PROMPT = Check(
    properties="7",
    claim="a complete slot's result begins within 12 cycles of a willing reader",
    bench=partial(ReduceBench, prompt=True),
    num_steps=18,
)
_READ = Check(
    properties="8",
    claim="a reader's addresses stay, cross no 4 KB, are at most the limit, and have room for what comes",
    bench=ReadBench,
    num_steps=3,
    forever=True,
    quick=True,
)
_WRITE = Check(
    properties="8",
    claim="a writer's addresses stay, cross no 4 KB, and are of beats that are there and leave as they said",
    bench=partial(WriteBench, answers=False),
    num_steps=3,
    forever=True,
    quick=True,
)
_ANSWERS = Check(
    properties="8",
    claim="at most the limit of written bursts wait for answers; a request is done once, when all of its are answered",
    bench=WriteBench,
    num_steps=16,
)

CHECKS: dict[str, Check] = {
    "fifo": _FIFO,
    "fifo.overfull": _mutant(_FIFO, "a writer one beat too late", partial(FifoBench, slack=1)),
    "fifo.room": _ROOM,
    "fifo.late": _mutant(_ROOM, "a writer one beat too late", partial(RoomBench, slack=1), quick=False, num_steps=10),
    "fifo.whole": _WHOLE,
    "fifo.uncommitted": _mutant(_WHOLE, "reads before a packet is whole", partial(WholeBench, Uncommitted)),
    "allocator": _ALLOCATOR,
    "allocator.roomless": _mutant(_ALLOCATOR, "does not look for room", partial(AllocatorBench, Roomless)),
    "allocator.part": _mutant(_ALLOCATOR, "grants a part of a route", partial(AllocatorBench, PartOf)),
    "router": _ROUTER,
    "router.prompt": _DELIVERED,
    "router.mixing": _mutant(_ROUTER, "starts while an output is busy", partial(RouterBench, Mixing)),
    "router.full": _mutant(
        _ROUTER, "does not look for room", partial(RouterBench, NeverFull), quick=False, num_steps=17
    ),
    "router.sided": _mutant(
        _DELIVERED, "serves one input only", partial(RouterBench, OneSided, prompt=15), quick=False
    ),
    "link": _LINK,
    "link.long": Check(properties=_LINK.properties, claim=_LINK.claim, bench=LinkBench, num_steps=15),
    "link.trusting": _mutant(_LINK, "takes damaged words", partial(LinkBench, Trusting)),
    "link.greedy": _mutant(_LINK, "sends without credit", partial(LinkBench, Greedy), num_steps=15),
    "link.credit": _CREDIT,
    "link.unpaid": _mutant(_CREDIT, "sends without credit", partial(CreditBench, Greedy), quick=False, num_steps=15),
    "link.generous": _mutant(_CREDIT, "gives places back early", partial(CreditBench, Generous), num_steps=8),
    "kv_dir": _KV,
    "kv_dir.long": Check(properties="2, 6", claim=_KV.claim, bench=KvBench, num_steps=23),
    "kv_dir.owners": _mutant(_KV, "forgets owners", partial(KvBench, ForgetsOwners)),
    "kv_dir.readers": _mutant(_KV, "frees at once", partial(KvBench, FreesAtOnce)),
    "kv_dir.draining": _mutant(_KV, "serves draining entries", partial(KvBench, ServesDraining)),
    "kv_dir.twice": _mutant(_KV, "takes an entry twice", partial(KvBench, TakesTwice)),
    "reduce": _REDUCE,
    "reduce.long": Check(properties="7", claim=_REDUCE.claim, bench=ReduceBench, num_steps=17),
    "reduce.prompt": _PROMPT,
    "reduce.hasty": _mutant(_REDUCE, "completes with the first child", partial(ReduceBench, Hasty)),
    "reduce.double": _mutant(_REDUCE, "counts a child twice", partial(ReduceBench, CountsTwice)),
    "reduce.polite": _mutant(_REDUCE, "lets its input wait", partial(ReduceBench, Polite), quick=False),
    "reduce.repeats": _mutant(
        _REDUCE, "sends results twice", partial(ReduceBench, emit=Repeats), quick=False, num_steps=14
    ),
    "reduce.forgets": _mutant(
        _PROMPT, "loses a completion", partial(ReduceBench, emit=Forgets, prompt=True), quick=False
    ),
    "axi.read": _READ,
    "axi.crossing": _mutant(_READ, "bursts cross 4 KB", partial(ReadBench, CrossingRead), num_steps=8),
    "axi.unlimited": _mutant(_READ, "no limit", partial(ReadBench, Unlimited), num_steps=10),
    "axi.restless": _mutant(_READ, "changes an address", partial(ReadBench, Restless), quick=False, num_steps=8),
    "axi.roomless": _mutant(
        _READ, "does not look for room", partial(ReadBench, RoomlessRead), quick=False, num_steps=10
    ),
    "axi.write": _WRITE,
    "axi.write_crossing": _mutant(_WRITE, "bursts cross 4 KB", partial(WriteBench, CrossingWrite), num_steps=8),
    "axi.write_restless": _mutant(
        _WRITE, "changes an address", partial(WriteBench, RestlessWrite), quick=False, num_steps=10
    ),
    "axi.early": _mutant(_WRITE, "asks without beats", partial(WriteBench, Early), quick=False, num_steps=8),
    "axi.answers": _ANSWERS,
    "axi.talkative": _mutant(_ANSWERS, "done with each burst", partial(WriteBench, Talkative), quick=False),
    "axi.write_unlimited": _mutant(_ANSWERS, "no limit", partial(WriteBench, UnlimitedWrite), quick=False),
}
