"""The router in cycles: latency of a hop, beats per cycle, and neighbours that stall."""

import random
from itertools import pairwise

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.entry import Entry, Port
from mcf.rtl.golden.packet import Packet
from routing import delivered, routed

FULL = dict(depth=256, routes=1024, max_beats=64, slack=32)
N, E, S, W, LOCAL = Port


def entry(in_port: Port, *outs: Port) -> int:
    return Entry(in_port=in_port, outs=frozenset(outs)).pack()


def stream(route: int, count: int, beats: int, **values: int) -> list[Packet]:
    return [Packet.of(dict(route_id=route, block=n, **values), range(beats)) for n in range(count)]


@pytest.mark.parametrize("in_port", Port)
def test_a_header_leaves_at_most_10_cycles_after_it_came(in_port: Port) -> None:
    outs = [port for port in Port if port != in_port]
    bench, _ = routed({in_port: stream(1000, 1, 17)}, {1000: entry(in_port, *outs)}, cycles=60, sizes=FULL)
    came = bench.passed[f"in{in_port}"]
    for out in outs:
        left = bench.passed[f"out{out}"]
        first = came[-1 if out == LOCAL else 0][0]  # the node itself gets whole packets: counted from the last beat
        assert left[0][0] - first <= 10
        assert [cycle - left[0][0] for cycle, _ in left] == list(range(18))


@pytest.mark.parametrize("beats", [17, 64])
def test_five_streams_move_a_beat_per_cycle_and_port(beats: int) -> None:
    ways = {N: S, E: W, S: N, W: LOCAL, LOCAL: E}
    packets = {port: stream(port, 400 // beats, beats) for port in Port}
    entries = {int(port): entry(port, way) for port, way in ways.items()}
    bench, counts = routed(packets, entries, cycles=520, sizes=FULL)
    for way in Port:
        cycles = [cycle for cycle, _ in bench.passed[f"out{way}"]]
        settled = cycles[2 * (beats + 1) :]
        assert settled[-1] - settled[0] + 1 == len(settled)
        assert len(cycles) == 400 // beats * (beats + 1)
    assert len(counts.grants) == 5 * (400 // beats)


def test_a_multicast_leaves_by_all_ports_at_a_beat_per_cycle() -> None:
    bench, _ = routed({LOCAL: stream(5, 6, 64)}, {5: entry(LOCAL, *Port)}, cycles=520, sizes=FULL)
    for out in Port:
        cycles = [cycle for cycle, _ in bench.passed[f"out{out}"]]
        assert len(cycles) == 6 * 65
        assert cycles[-1] - cycles[0] + 1 <= 6 * 65 + 7


def test_small_packets_take_one_grant_in_three_cycles() -> None:
    packets = {port: stream(port, 40, 1) for port in (N, E, S, W)}
    entries = {int(port): entry(port, LOCAL if port == W else Port((port + 2) % 4)) for port in packets}
    _, counts = routed(packets, entries, cycles=520, sizes=FULL)
    assert len(counts.grants) == 160
    assert {later - earlier for earlier, later in pairwise(counts.grants[:140])} == {3}


def test_a_stalled_neighbour_holds_up_nobody_else_and_loses_nothing() -> None:
    packets = {N: stream(0, 12, 10), W: stream(3, 12, 10), LOCAL: stream(4, 12, 10)}
    entries = {0: entry(N, S), 3: entry(W, LOCAL), 4: entry(LOCAL, N, E)}
    sizes = dict(depth=32, routes=64, max_beats=10, slack=16)
    stall_until = 600
    bench, counts = routed(
        packets,
        entries,
        cycles=900,
        sizes=sizes,
        stall=lambda name, cycle: 1.0 if name == f"out{S}" and cycle < stall_until else 0.0,
    )
    got = delivered(bench)
    assert got[S] == packets[N]
    assert got[N] == got[E] == packets[LOCAL]
    assert got[LOCAL] == packets[W]
    assert max(cycle for cycle, _ in bench.passed[f"out{LOCAL}"]) < stall_until
    assert max(cycle for cycle, _ in bench.passed[f"out{E}"]) < stall_until
    assert not counts.dropped.total()


def test_a_multicast_is_not_starved_by_unicasts_between_its_ports() -> None:
    packets = {N: stream(0, 40, 5), E: stream(1, 40, 5), LOCAL: stream(4, 1, 5)}
    entries = {0: entry(N, S), 1: entry(E, W), 4: entry(LOCAL, S, W)}
    bench, _ = routed(packets, entries, cycles=400, sizes=dict(depth=64, routes=64, max_beats=10, slack=16))
    came = bench.passed[f"in{LOCAL}"][0][0]
    for out in (S, W):
        mine = [cycle for cycle, (word, _) in bench.passed[f"out{out}"] if word == packets[LOCAL][0].header]
        assert len(mine) == 1
        assert mine[0] - came < 60


def test_full_queues_all_round_drain_without_loss() -> None:
    rng = random.Random(7)
    packets = {port: stream(port, 20, 7, src=port) for port in Port}
    entries = {int(port): entry(port, *(p for p in Port if p != port or p == LOCAL)) for port in Port}
    bench, counts = routed(
        packets,
        entries,
        cycles=4000,
        want=8 * 20 * (4 * 4 + 5),
        sizes=dict(depth=32, routes=64, max_beats=10, slack=16),
        stall=lambda name, cycle: 1.0 if cycle < 200 else rng.choice((0.1, 0.5)),
    )
    got = delivered(bench)
    for port in Port:
        for out in (p for p in Port if p != port or p == LOCAL):
            assert [p for p in got[out] if p.field("src") == port] == packets[port]
    assert len(counts.grants) == 100
