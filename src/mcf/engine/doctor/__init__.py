"""The doctor: looks at every node before weights load, measures it, and says what to mend."""

from mcf.engine.doctor.checks import check_all, has_error
from mcf.engine.doctor.survey import ERROR, OK, WARNING, Clock, Finding, Needs, NodeReport, Survey

__all__ = [
    "ERROR",
    "OK",
    "WARNING",
    "Clock",
    "Finding",
    "Needs",
    "NodeReport",
    "Survey",
    "check_all",
    "has_error",
]
