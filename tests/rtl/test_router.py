"""The router against its golden model, on random traffic with random stalls."""

import random
from collections import Counter
from collections.abc import Callable, Mapping

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.rtl.entry import Entry, Port
from mcf.rtl.golden.packet import Packet, with_crc
from mcf.rtl.golden.router import RouterModel
from routing import REASONS, delivered, routed


def table(rng: random.Random, num_routes: int) -> dict[int, int]:
    """Random routes, unicast, multicast and reducing; every fourth one is left out, so invalid."""
    out = {}
    for route in range(num_routes):
        in_port = Port(rng.randrange(5))
        others = [p for p in Port if p != in_port or p == Port.LOCAL]
        outs = frozenset(rng.sample(others, rng.choice((1, 1, 1, 2, 3, len(others)))))
        children = frozenset(rng.sample(list(Port)[:4], 2)) if in_port == Port.LOCAL else frozenset()
        if route % 4:
            out[route] = Entry(in_port=in_port, outs=outs, children=children).pack()
    return out


def expected(packets: Mapping[Port, list[Packet]], model: RouterModel) -> dict[Port, Counter[Packet]]:
    out = {port: Counter[Packet]() for port in Port}
    for port, sent in packets.items():
        for packet in sent:
            for way, copy in model.push(port, packet):
                out[way][copy] += 1
    return out


def traffic(
    rng: random.Random, entries: Mapping[int, int], count: int, sizes: Callable[[], int]
) -> dict[Port, list[Packet]]:
    """Packets by ports where their routes expect them, numbered by `tag` and `block`."""
    out: dict[Port, list[Packet]] = {port: [] for port in Port}
    by_port = {port: [r for r, e in entries.items() if e >> 5 & 7 == port] for port in Port}
    for number in range(count):
        port = rng.choice([p for p in Port if by_port[p]])
        values = dict(route_id=rng.choice(by_port[port]), src=port, block=number)
        out[port].append(Packet.of(values, [rng.getrandbits(128) for _ in range(sizes())]))
    return out


def break_some(rng: random.Random, packet: Packet) -> Packet:
    """One of the ways in which a packet goes wrong, or none."""
    header, payload = packet.header, packet.payload
    kind = rng.randrange(10)
    if kind == 0:
        header ^= 1 << rng.randrange(128)
    elif kind == 1:
        payload = payload[: rng.randrange(len(payload))] if payload else payload
    elif kind == 2:
        payload += tuple(rng.getrandbits(128) for _ in range(rng.choice((1, 2, 30))))
    elif kind == 3:
        route = rng.randrange(128)
        header = with_crc(header & ~(1023 << 50) | route << 50)
    elif kind == 4:
        header = with_crc(header & ~(4095 << 92) | rng.choice((11, 64, 4095)) << 92)
    return Packet(header=header, payload=payload)


@pytest.mark.parametrize(("seed", "pause", "stall"), [(1, 0.0, 0.0), (2, 0.3, 0.3), (3, 0.0, 0.6)])
def test_each_packet_goes_to_all_its_ports_once_and_in_order(seed: int, pause: float, stall: float) -> None:
    rng = random.Random(seed)
    entries = table(rng, 64)
    packets = traffic(rng, entries, 60, lambda: rng.choice((0, 1, 3, 10)))
    model = RouterModel(table=entries, max_beats=10)
    want = expected(packets, model)
    beats = sum(len(p.payload) + 1 for port in Port for p in want[port].elements())
    bench, counts = routed(packets, entries, cycles=4000, want=beats, seed=seed, pause=pause, stall=stall)
    got = delivered(bench)
    assert {port: Counter(got[port]) for port in Port} == want
    for port in Port:
        for src in Port:
            numbers = [p.field("block") for p in got[port] if p.field("src") == src]
            assert numbers == sorted(numbers)
    assert not counts.dropped.total() + counts.aborted
    assert len(counts.grants) == 60


@pytest.mark.parametrize("seed", range(3))
def test_broken_packets_are_dropped_and_counted_and_the_others_arrive(seed: int) -> None:
    rng = random.Random(seed)
    entries = table(rng, 64)
    packets = traffic(rng, entries, 80, lambda: rng.choice((0, 1, 3, 10)))
    packets = {port: [break_some(rng, packet) for packet in sent] for port, sent in packets.items()}
    model = RouterModel(table=entries, max_beats=10)
    want = expected(packets, model)
    bench, counts = routed(packets, entries, cycles=1500, seed=seed, pause=0.1, stall=0.2)
    assert {port: Counter(sent) for port, sent in delivered(bench).items()} == want
    assert all(packet.is_whole for packet in delivered(bench)[Port.LOCAL])
    assert {reason: counts.dropped[reason] for reason in REASONS} == model.dropped
    assert counts.aborted == model.aborted
    assert model.dropped["length"] > 3
