"""What happened: one event table for the terminal, JSON, Perfetto and the tests. It says what, never why."""

from mcf.trace.builder import TraceBuilder
from mcf.trace.columns import EVENT, MEMORY
from mcf.trace.files import read_trace, write_perfetto
from mcf.trace.perfetto import to_perfetto
from mcf.trace.trace import Trace, concat

__all__ = ["EVENT", "MEMORY", "Trace", "TraceBuilder", "concat", "read_trace", "to_perfetto", "write_perfetto"]
