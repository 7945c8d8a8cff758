"""THE format: what a decision looks like, and whether it is legal."""

from mcf.schedule.builder import Builder
from mcf.schedule.codec import digest, from_bytes, to_bytes
from mcf.schedule.meta import PAGE_TOKENS, UNLIMITED, ScheduleMeta
from mcf.schedule.passes import unicast
from mcf.schedule.pieces import contiguous, cut, head_tail
from mcf.schedule.schedule import Schedule
from mcf.schedule.text import dump, grid, parse
from mcf.schedule.verify import Report, verify

__all__ = [
    "PAGE_TOKENS",
    "UNLIMITED",
    "Builder",
    "Report",
    "Schedule",
    "ScheduleMeta",
    "contiguous",
    "cut",
    "digest",
    "dump",
    "from_bytes",
    "grid",
    "head_tail",
    "parse",
    "to_bytes",
    "unicast",
    "verify",
]
