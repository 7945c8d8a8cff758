"""A mesh joined by real link layers: whatever the wires do, the same outputs, or an error that names the link."""

from functools import cache

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import RunError, UserError
from mcf.rtl import links
from mcf.rtl.board import Board
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.demo import demo_schedule
from mcf.rtl.descriptor import pack_descriptor
from mcf.rtl.faults import FaultKind, LinkFault, LinkKind, Refusal
from mcf.rtl.formal.link import Trusting
from mcf.rtl.golden.credit_link import word_fields
from mcf.rtl.hdl.credit_link import DEPTH, CreditLink
from mcf.rtl.links import PATIENCE
from mcf.rtl.routes import Mesh, Tables, spread
from mcf.rtl.run import RtlOutcome, run
from mcf.schedule.wire import Op, unpack
from mcf.testing import random_qkv

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

MESH = Mesh(width=2, height=2)
EDGES = [(0, 1), (1, 0), (0, 2), (2, 0), (1, 3), (3, 1), (2, 3), (3, 2)]
LONG = 8000  # cycles: two thirds of a run
FOREVER = 1 << 31
# The order in which decode states arrive decides how they are rounded: the states' own bound, of outputs below 1.
DECODE_TOLERANCE = 2e-3


def simulated(**how) -> RtlOutcome:
    sched = demo_schedule(MESH)
    return run(sched, *random_qkv(sched.meta, decode_tokens=1), decode_tokens=1, mesh=MESH, **how)


@cache
def plain() -> RtlOutcome:
    """The run that nothing disturbs, on links without a link layer."""
    return simulated(links=LinkKind.PLAIN)


def check_same(got: RtlOutcome) -> None:
    """Bit for bit in prefill; decode within what the order of arrival changes."""
    want, prompt = plain(), demo_schedule(MESH).meta.prompt_tokens
    np.testing.assert_array_equal(got.out[:, :prompt], want.out[:, :prompt])
    np.testing.assert_allclose(got.out[:, prompt:], want.out[:, prompt:], rtol=0, atol=DECODE_TOLERANCE)
    assert got.merged == want.merged
    assert got.trace.bytes_per_link_and_purpose() == want.trace.bytes_per_link_and_purpose()
    assert {link: use.moved for link, use in got.links.items()} == {link: use.moved for link, use in want.links.items()}


def total(got: RtlOutcome, what: str) -> int:
    return sum(getattr(use, what) for use in got.links.values())


def test_a_quiet_wire_repeats_and_refuses_nothing() -> None:
    got = simulated(latency=2)
    check_same(got)
    assert (total(got, "resent"), total(got, "refused")) == (0, 0)
    assert {read[name] for read in got.counters for name in ("link_resent", "link_bad")} == {0}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ({"noise": 1.1}, "got noise = 1.1: expected a share, 0 to 1"),
        ({"noise": float("nan")}, "got noise = nan: expected a share"),
        ({"stall": -0.1}, "got stall = -0.1: expected a share"),
        ({"latency": -1}, "got links of latency -1: expected 0 to 1,000,000 cycles"),
    ],
)
def test_links_that_cannot_be_are_refused(how, text: str) -> None:
    with pytest.raises(UserError, match=text):
        simulated(**how)


@pytest.mark.full
def test_a_wire_of_many_cycles_is_not_taken_for_silent() -> None:
    """A packet's first beat is under way for longer than links on short wires may be still."""
    mesh, latency = Mesh(width=2, height=1), 3 * PATIENCE
    board, tables = Board(mesh, links=LinkKind.CREDIT, latency=latency, noise=0.5), Tables(mesh=mesh)
    header = {"op": Op.KV_DATA, "dst_node": 1, "route_id": tables.add(spread(mesh, 0, [(0, 1)], [1])), "block": 5}
    for node in range(2):
        board.write_routes(node, tables.words(node).items())
    board.post(0, [pack_descriptor(header)])
    while not (packets := list(board.packets(1))):
        assert board.run(), "it is lost"
    board.close()
    assert unpack(packets[0].header)["block"] == 5
    assert packets[0].cycle > latency


def test_flipped_lost_and_doubled_words_are_refused_and_sent_again() -> None:
    got = simulated(noise=0.02)
    check_same(got)
    assert all(use.resent > 100 and use.refused > 100 for use in got.links.values())
    for node, read in enumerate(got.counters):  # what software reads over AXI4-Lite
        assert read["link_resent"] == sum(use.resent for (a, _), use in got.links.items() if a == node)
        assert read["link_bad"] == sum(use.refused for (_, b), use in got.links.items() if b == node)


LAST, FULL, SEQ = 128, 129, 132  # bits of a word: ends a packet, carries a beat, where its number starts


def flips(edge: tuple[int, int], words: range, bits: list[int]) -> list[LinkFault]:
    return [LinkFault(*edge, FaultKind.FLIP, word, bits[i % len(bits)]) for i, word in enumerate(words)]


CRC = sum(word_fields(DEPTH).values()) - 1  # the last bit
DAMAGE = {
    "headers and payloads": flips((0, 1), range(0, 3000, 7), [3, 40, 70, 111, 127]),
    "ends of packets": flips((1, 3), range(0, 3000, 5), [LAST, FULL]),  # packets too short and too long
    "numbers and checks": flips((3, 2), range(0, 2000, 9), [SEQ, SEQ + 8, SEQ + 15, CRC]),
    "lost": [
        LinkFault(2, 3, FaultKind.DROP, word) for start in range(10, 3000, 300) for word in range(start, start + 40)
    ],
    "doubled": [
        LinkFault(2, 0, FaultKind.DOUBLE, word) for start in range(9, 3000, 200) for word in range(start, start + 70)
    ],
}


@pytest.mark.parametrize(
    "what", [pytest.param(w, marks=[] if i % 3 == 0 else pytest.mark.full) for i, w in enumerate(DAMAGE)]
)
def test_damage_of_one_kind_changes_nothing(what: str) -> None:
    got = simulated(faults=DAMAGE[what])
    check_same(got)
    assert got.links[DAMAGE[what][0][:2]].refused >= 10


@pytest.mark.parametrize(
    "back", [pytest.param([], id="one way"), pytest.param([(1, 0)], id="both ways", marks=pytest.mark.full)]
)
def test_a_neighbour_that_is_silent_for_long_and_comes_back(back: list[tuple[int, int]]) -> None:
    got = simulated(faults=[LinkFault(*edge, FaultKind.SILENCE, 3000, LONG) for edge in [(0, 1), *back]])
    check_same(got)
    assert got.cycles > plain().cycles + LONG // 2
    assert got.links[0, 1].resent > LONG // 10
    assert sum(use.resent for link, use in got.links.items() if set(link) != {0, 1}) == 0


@pytest.mark.parametrize("edge", [(2, 3), pytest.param((0, 1), marks=pytest.mark.full)])
def test_a_neighbour_that_is_silent_for_good_is_named(edge: tuple[int, int]) -> None:
    with pytest.raises(RunError, match=rf"nothing has moved for 50,000 cycles: link {edge[0]} > {edge[1]} is silent"):
        simulated(faults=[LinkFault(*edge, FaultKind.SILENCE, 2500, FOREVER)])


@pytest.mark.parametrize("kind", [LinkKind.CREDIT, pytest.param(LinkKind.PLAIN, marks=pytest.mark.full)])
def test_a_node_that_takes_nothing_for_long_fills_its_queues_and_loses_nothing(kind: LinkKind) -> None:
    got = simulated(links=kind, faults=[Refusal(1, 2000, LONG)])
    check_same(got)
    assert got.cycles > plain().cycles + LONG // 2
    waited = [sum(use.stalled for (_, b), use in out.links.items() if b == 1) for out in (got, plain())]
    assert waited[0] > waited[1] + LONG // 2
    assert (total(got, "resent"), total(got, "refused")) == (0, 0)


@pytest.mark.parametrize("kind", [LinkKind.CREDIT, pytest.param(LinkKind.PLAIN, marks=pytest.mark.full)])
def test_a_node_that_takes_nothing_for_good_is_named(kind: LinkKind) -> None:
    with pytest.raises(RunError, match=r"nothing has moved for 50,000 cycles: link \d > 1 is full; expected node 1"):
        simulated(links=kind, faults=[Refusal(1, 2000, FOREVER)])


class Forgetful(CreditLink):
    """A mutant: nothing is ever sent again."""

    def _timer(self, m, late, progress) -> None:
        m.d.comb += late.eq(0)


@pytest.mark.full
def test_without_the_check_of_words_wrong_payload_comes_through(monkeypatch) -> None:
    monkeypatch.setattr(links, "CreditLink", Trusting)
    got = simulated(faults=flips((0, 1), range(300, 340), [40]))
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        check_same(got)


@pytest.mark.full
def test_without_a_timer_a_lost_word_may_stop_the_mesh(monkeypatch) -> None:
    monkeypatch.setattr(links, "CreditLink", Forgetful)
    with pytest.raises(RunError, match=r"link 0 > 1 lost [\d,]+ words for good"):
        simulated(faults=[LinkFault(0, 1, FaultKind.SILENCE, 2500, LONG)])
