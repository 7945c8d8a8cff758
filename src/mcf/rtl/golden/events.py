"""Events and the barrier in plain Python."""

from collections import Counter
from dataclasses import dataclass, field

from mcf.rtl.descriptor import NO_EVENT

MOST_PENDING = 15  # sets of one event that nobody has waited for yet


@dataclass(kw_only=True)
class EventCounts:
    """How many sets of each event are pending."""

    pending: Counter[int] = field(default_factory=Counter)

    def set(self, event: int) -> bool:
        """Add one; False where it is lost because MOST_PENDING are pending. No event is never lost."""
        if event == NO_EVENT:
            return True
        if self.pending[event] == MOST_PENDING:
            return False
        self.pending[event] += 1
        return True

    def can_take(self, event: int) -> bool:
        """Say whether a wait for it ends now."""
        return event == NO_EVENT or self.pending[event] > 0

    def take(self, event: int) -> None:
        """End a wait."""
        assert self.can_take(event)
        if event != NO_EVENT:
            self.pending[event] -= 1


@dataclass(kw_only=True)
class BarrierCount:
    """Arrivals of the running epoch and of the one after it, told apart by the tag's lowest bit."""

    peers: int
    arrived: list[int] = field(default_factory=lambda: [0, 0])

    def arrive(self, tag: int) -> bool:
        """Count a BARRIER packet; True where it completes its epoch."""
        self.arrived[tag % 2] += 1
        if self.arrived[tag % 2] < self.peers:
            return False
        self.arrived[tag % 2] = 0
        return True
