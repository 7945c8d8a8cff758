"""The reference executor: one process, numpy float64, no clock. The law: what a schedule means."""

from mcf.ref.run import run
from mcf.trace.outcome import Certificate, Outcome, Residency

__all__ = ["Certificate", "Outcome", "Residency", "run"]
