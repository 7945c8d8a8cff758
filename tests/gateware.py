"""Drives streams of a component in Amaranth's simulator: random stalls at every source and sink, one edge at a time."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from amaranth.sim import Simulator

from mcf.schedule.wire import FIELDS

Watch = Callable[[Any, int], None]


class Bench:
    """Offers `sources` (name -> items), takes what comes from `sinks`, and writes down when each item passed.

    A source's items are what `ctx.set` of its payload takes; a sink gives what `read` makes of its payload. With
    probability `pause` a source waits and with probability `stall` a sink is not ready, decided anew in each cycle and
    never taken back once valid. `passed[name]` lists (cycle, item).
    """

    def __init__(
        self,
        dut: Any,
        *,
        sources: Mapping[str, tuple[Any, Iterable[Any]]],
        sinks: Mapping[str, tuple[Any, Callable[[Any], Any]]],
        seed: int = 0,
        pause: float = 0.0,
        stall: float | Callable[[str, int], float] = 0.0,
        watch: Sequence[Watch] = (),
    ) -> None:
        self.dut, self.sources, self.sinks, self.pause, self.stall = dut, sources, sinks, pause, stall
        self.rng, self.watch = random.Random(seed), watch
        self.passed: dict[str, list[tuple[int, Any]]] = {name: [] for name in (*sources, *sinks)}
        self.left = {name: list(items)[::-1] for name, (_, items) in sources.items()}
        self.offered: dict[str, bool] = dict.fromkeys(sources, False)

    def run(self, cycles: int, *, until: Callable[["Bench"], bool] | None = None, setup: Any = None) -> "Bench":
        """Run for at most `cycles`, or until `until` holds."""
        simulator = Simulator(self.dut)
        simulator.add_clock(1e-6)

        async def bench(ctx: Any) -> None:
            if setup is not None:
                await setup(ctx)
            for cycle in range(cycles):
                self._cycle(ctx, cycle)
                await ctx.tick()
                if until is not None and until(self):
                    return

        simulator.add_testbench(bench)
        simulator.run()
        return self

    def items(self, name: str) -> list[Any]:
        """What passed a stream, without the times."""
        return [item for _, item in self.passed[name]]

    def _cycle(self, ctx: Any, cycle: int) -> None:
        for name, (stream, _) in self.sources.items():
            self._offer(ctx, name, stream)
        for name, (stream, _) in self.sinks.items():
            stall = self.stall(name, cycle) if callable(self.stall) else self.stall
            ctx.set(stream.ready, self.rng.random() >= stall)
        for name, (stream, _) in self.sources.items():
            if self.offered[name] and ctx.get(stream.ready):
                self.passed[name].append((cycle, self.left[name].pop()))
                self.offered[name] = False
        for name, (stream, read) in self.sinks.items():
            if ctx.get(stream.ready) and ctx.get(stream.valid):
                self.passed[name].append((cycle, read(ctx.get(stream.payload))))
        for watch in self.watch:
            watch(ctx, cycle)

    def _offer(self, ctx: Any, name: str, stream: Any) -> None:
        if not self.offered[name]:
            self.offered[name] = bool(self.left[name]) and self.rng.random() >= self.pause
            ctx.set(stream.valid, self.offered[name])
            if self.offered[name]:
                ctx.set(stream.payload, self.left[name][-1])


def beat(payload: Any) -> tuple[int, int]:
    """A beat as (word, last)."""
    return payload.data, payload.last


def as_beats(packets: Iterable[Any]) -> list[dict[str, int]]:
    """The beats of golden packets, as a source takes them."""
    return [{"data": word, "last": last} for packet in packets for word, last in packet.beats()]


def as_fields(word: int) -> dict[str, int]:
    """A header as a source takes it, right or wrong."""
    return {name: word >> field.low & field.limit - 1 for name, field in FIELDS.items()}
