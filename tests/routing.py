"""A router in the simulator: fill its table, run packets through it, see what comes out."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from gateware import Bench, as_beats, beat
from mcf.rtl.entry import Port
from mcf.rtl.golden.packet import Packet, cut
from mcf.rtl.hdl.router import Router

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
