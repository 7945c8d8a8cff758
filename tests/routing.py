"""A router in the simulator: fill its table, run packets through it, see what comes out."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from gateware import Bench, as_beats, beat
from mcf.rtl.entry import Port
from mcf.rtl.golden.packet import Packet, cut
from mcf.rtl.hdl.beat import BeatStream
from mcf.rtl.hdl.router import Router
from mcf.rtl.routes import Mesh, Tables

SMALL = dict(depth=32, routes=64, max_beats=10, slack=16)
REASONS = ("header", "route", "port", "length")


class Counts:
    """Sums of the router's pulses."""

    def __init__(self, dut: Router) -> None:
        self.dut, self.dropped, self.aborted, self.grants = dut, Counter[str](), 0, list[int]()

    def __call__(self, ctx: Any, cycle: int) -> None:
        for reason in REASONS:
            self.dropped[reason] += ctx.get(self.dut.dropped[reason])
        self.aborted += ctx.get(self.dut.aborted)
        self.grants += [cycle] * ctx.get(self.dut.granted)


def routed(
    packets: Mapping[Port, list[Packet]],
    entries: Mapping[int, int],
    *,
    cycles: int,
    want: int | None = None,
    sizes: Mapping[str, int] = SMALL,
    **stalls: Any,
) -> tuple[Bench, Counts]:
    """Run packets through a router with these table entries, until `want` packets have come out and it is quiet."""
    dut = Router(**sizes)
    counts = Counts(dut)
    bench = Bench(
        dut,
        sources={f"in{port}": (dut.inputs[port], as_beats(packets.get(port, ()))) for port in Port},
        sinks={f"out{port}": (dut.outputs[port], beat) for port in Port},
        watch=[counts],
        **stalls,
    )

    async def setup(ctx: Any) -> None:
        for route, entry in entries.items():
            ctx.set(dut.write.payload.index, route)
            ctx.set(dut.write.payload.entry.as_value(), entry)
            ctx.set(dut.write.valid, 1)
            await ctx.tick()
        ctx.set(dut.write.valid, 0)

    def done(bench: Bench) -> bool:
        return want is not None and sum(len(bench.passed[f"out{p}"]) for p in Port) >= want

    bench.run(cycles, setup=setup, until=None if want is None else done)
    return bench, counts


def delivered(bench: Bench) -> dict[Port, list[Packet]]:
    return {port: cut(bench.items(f"out{port}")) for port in Port}


class MeshOfRouters(wiring.Component):
    """Routers joined as a mesh: `sources` and `sinks` are the nodes' own ports, `writes` their tables."""

    def __init__(self, mesh: Mesh, **sizes: int) -> None:
        self.mesh = mesh
        self.routers = [Router(**sizes) for _ in range(mesh.num_nodes)]
        write = self.routers[0].write.signature.flip()
        super().__init__(
            {
                "sources": In(BeatStream).array(mesh.num_nodes),
                "sinks": Out(BeatStream).array(mesh.num_nodes),
                "writes": In(write).array(mesh.num_nodes),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for node, router in enumerate(self.routers):
            m.submodules[f"node{node}"] = router
            wiring.connect(m, wiring.flipped(self.sources[node]), router.inputs[Port.LOCAL])
            wiring.connect(m, router.outputs[Port.LOCAL], wiring.flipped(self.sinks[node]))
            wiring.connect(m, wiring.flipped(self.writes[node]), router.write)
            for port in Port:
                beyond = self.mesh.neighbour(node, port)
                if beyond is not None:
                    wiring.connect(m, router.outputs[port], self.routers[beyond].inputs[port.opposite])
        return m


def meshed(
    tables: Tables,
    packets: Mapping[int, list[Packet]],
    *,
    cycles: int,
    want: int | None = None,
    sizes: Mapping[str, int] = SMALL,
    **stalls: Any,
) -> Bench:
    """Run packets, by the node that sends them, over a mesh with these tables, until `want` beats have come out."""
    nodes = range(tables.mesh.num_nodes)
    dut = MeshOfRouters(tables.mesh, **sizes)
    bench = Bench(
        dut,
        sources={f"in{node}": (dut.sources[node], as_beats(packets.get(node, ()))) for node in nodes},
        sinks={f"out{node}": (dut.sinks[node], beat) for node in nodes},
        **stalls,
    )

    async def setup(ctx: Any) -> None:
        for route in range(1, len(tables.routes) + 1):
            for node in nodes:
                write, word = dut.writes[node], tables.words(node).get(route, 0)
                ctx.set(write.payload.index, route)
                ctx.set(write.payload.entry.as_value(), word)
                ctx.set(write.valid, 1)
            await ctx.tick()
        for node in nodes:
            ctx.set(dut.writes[node].valid, 0)

    def done(bench: Bench) -> bool:
        return want is not None and sum(len(bench.passed[f"out{node}"]) for node in nodes) >= want

    return bench.run(cycles, setup=setup, until=done)
