"""The builder that fills a trace: cheap to append to, one for each thread."""

from typing import Any

import numpy as np

from mcf.schedule.steps import NONE
from mcf.trace.columns import EVENT, MEMORY, Table
from mcf.trace.trace import Trace

_BLOCK_ROWS = 4096  # rows wait as tuples, the cheapest thing to append, and become an array so many at a time


class _TableBuilder:
    """A structured array that grows by appended tuples, in amortised constant time and bounded Python memory."""

    def __init__(self, dtype: np.dtype[np.void]) -> None:
        self._dtype = dtype
        self._blocks: list[Table] = []
        self._rows: list[tuple[float, ...]] = []

    def append(self, row: tuple[float, ...]) -> None:
        """Append one row, in column order."""
        self._rows.append(row)
        if len(self._rows) >= _BLOCK_ROWS:
            self._blocks.append(self._tail())
            self._rows = []

    def table(self) -> Table:
        """Return everything appended so far; the builder can go on."""
        return np.concatenate([*self._blocks, self._tail()])

    def _tail(self) -> Table:
        return np.array(self._rows, dtype=self._dtype)


class TraceBuilder:
    """Collects events and memory samples of one thread; several builders' traces are joined by `concat`."""

    def __init__(self) -> None:
        self._events = _TableBuilder(EVENT)
        self._memory = _TableBuilder(MEMORY)

    def event(
        self,
        *,
        kind: int,
        lane: int,
        stage: int,
        node: int,
        t_start: float,
        t_end: float,
        row: int = NONE,
        peer: int = NONE,
        chunk: int = NONE,
        layer: int = NONE,
        purpose: int = 0,
        payload_bytes: int = 0,
        wait: bool = False,
    ) -> None:
        """Append one event; columns as in `EVENT`."""
        self._events.append(
            (row, kind, lane, stage, node, peer, chunk, layer, purpose, t_start, t_end, payload_bytes, wait)
        )

    def memory(self, *, node: int, t: float, bytes_in_use: int, chunk: int = NONE) -> None:
        """Append one sample of the KV bytes in use on a node."""
        self._memory.append((node, chunk, t, bytes_in_use))

    def to_trace(self, meta: dict[str, Any] | None = None) -> Trace:
        """Return everything appended so far as a trace; the builder can go on."""
        return Trace(events=self._events.table(), memory=self._memory.table(), meta=dict(meta or {}))
