"""A time limit: a moment after which what still runs has failed."""

import math
import time
from dataclasses import dataclass

from mcf.errors import RequestTimeoutError, UserError


@dataclass(frozen=True, kw_only=True)
class Limit:
    """`limit_s` seconds that end at `at_s` on the monotonic clock."""

    limit_s: float
    at_s: float

    @classmethod
    def start(cls, limit_s: "float | Limit | None") -> "Limit | None":
        """Start a limit now; None is no limit, a running one goes on. Raises UserError for a number that is no time."""
        if limit_s is None or isinstance(limit_s, Limit):
            return limit_s
        if not (math.isfinite(limit_s) and limit_s > 0):
            raise UserError(f"got a time limit of {limit_s} s: expected a number of seconds above 0")
        return cls(limit_s=limit_s, at_s=time.monotonic() + limit_s)

    @property
    def left_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.at_s - time.monotonic())

    def check(self, phase: str) -> None:
        """Raise RequestTimeoutError, naming `phase`, when the time is over."""
        if time.monotonic() >= self.at_s:
            raise RequestTimeoutError(phase, self.limit_s)
