"""What a simulation returns: the trace in model time, and the numbers read from it."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcf.sim.network import Link
from mcf.trace import Trace


@dataclass(frozen=True, kw_only=True, eq=False)
class SimResult:
    """A schedule's prefill in model time, on one profile.

    `ttft_s` the last node's end of prefill, and the output head for one token; `finish_s` [N] each node's end of its
    last prefill row; `link_busy_s` seconds that each link was occupied (on a switch: each port, see `sim.network`);
    `link_bytes` bytes per (from, to, purpose); `multicast_bytes_s` the rate at which a new block reaches all of its
    receivers, from the start of its first hop to its last arrival: the median over blocks and layers, 0 without any;
    `traffic` bytes per purpose, each hop counted, as in `verify`'s report.
    All of these are for all `num_layers` layers. `trace` holds the `simulated_layers` that were simulated; where they
    are fewer, `is_extrapolated`, and the times of the rest are extrapolated, the bytes exact.
    """

    trace: Trace
    ttft_s: float
    finish_s: tuple[float, ...]
    link_busy_s: Mapping[Link, float]
    link_bytes: Mapping[tuple[int, int, str], int]
    traffic: Mapping[str, int]
    multicast_bytes_s: float
    num_layers: int
    simulated_layers: int

    @property
    def link_loads(self) -> dict[Link, float]:
        """Part of the time to the first token in which each link (on a switch: each port) was occupied."""
        return {link: busy / self.ttft_s for link, busy in self.link_busy_s.items()}

    @property
    def is_extrapolated(self) -> bool:
        """Say whether only some of the layers were simulated."""
        return self.simulated_layers < self.num_layers
