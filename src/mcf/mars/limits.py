"""Lower bounds, each for a reason of its own (section 3.5 of the design notes), and which of them is the largest."""

from dataclasses import dataclass

LIMITS = ("compute", "weights", "inbound", "bisection", "latency")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Lower bounds of the time to the first token, in seconds.

    `compute_s` arithmetic of the prompt; `weights_s` reading the weights for every chunk; `inbound_s` bytes into one
    node; `bisection_s` bytes between two halves of the nodes; `latency_s` ways that nothing can hide.
    """

    compute_s: float
    weights_s: float
    inbound_s: float
    bisection_s: float
    latency_s: float

    @property
    def bound_s(self) -> float:
        """The largest of them."""
        return max(self.seconds(name) for name in LIMITS)

    @property
    def limit(self) -> str:
        """Which is the largest: a name of `LIMITS`; of equal ones the first."""
        return max(LIMITS, key=self.seconds)

    @property
    def bounds(self) -> dict[str, float]:
        """All of them: `compute_s` and so on, as in every report."""
        return {f"{name}_s": self.seconds(name) for name in LIMITS}

    def seconds(self, limit: str) -> float:
        """One of them, by its name in `LIMITS`."""
        return float(getattr(self, f"{limit}_s"))
