"""What a simulation returns: the trace in model time, and the numbers read from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from mcf.sim.fold import Fold
from mcf.sim.network import Link
from mcf.trace import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class SimResult:
    """A schedule's prefill in model time, on one profile.

    `ttft_s` the last node's end of prefill, and the output head for one token; `finish_s` [N] each node's end of its
    last prefill row; `link_busy_s` seconds that each link was occupied (on a switch: each port, see `sim.network`);
    `multicast_bytes_s` the rate at which a new block reaches all of its
    receivers, from the start of its first hop to its last arrival: the median over blocks and layers, 0 without any;
    `traffic` bytes per purpose, each hop counted, as in `verify`'s report.
    All of these are for all `num_layers` layers. `trace` holds the `simulated_layers` that were simulated; where they
    are fewer, `is_extrapolated`, and the times of the rest are extrapolated, the bytes exact.
    `recorded` is the trace of what was simulated: of all nodes, or of node 0 and its sends where `fold` says how it
    stands for all.
    """

    recorded: Trace
    fold: Fold | None
    ttft_s: float
    finish_s: tuple[float, ...]
    link_busy_s: Mapping[Link, float]
    traffic: Mapping[str, int]
    multicast_bytes_s: float
    num_layers: int
    simulated_layers: int

    @cached_property
    def trace(self) -> Trace:
        """The trace of all nodes, made when it is first asked for: a row for each of a million hops, where they are."""
        return self.recorded if self.fold is None else self.fold.trace(self.recorded)

    @cached_property
    def link_bytes(self) -> dict[tuple[int, int, str], int]:
        """Payload bytes per (from, to, purpose), all layers."""
        one = self.recorded.bytes_per_link_and_purpose()
        every = one if self.fold is None else self.fold.link_bytes(one)
        return {key: total // self.simulated_layers * self.num_layers for key, total in every.items()}

    @property
    def link_loads(self) -> dict[Link, float]:
        """Part of the time to the first token in which each link (on a switch: each port) was occupied."""
        return {link: busy / self.ttft_s for link, busy in self.link_busy_s.items()}

    @property
    def is_extrapolated(self) -> bool:
        """Say whether only some of the layers were simulated."""
        return self.simulated_layers < self.num_layers
