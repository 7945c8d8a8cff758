"""What a run on simulated hardware leaves: outputs, events, memory in use, phases."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from mcf.errors import RunError
from mcf.rtl.links import LinkUse
from mcf.rtl.number import Array
from mcf.schedule.program import Program
from mcf.schedule.steps import ALL, CONVERGE, DECODE, PREFILL, Step
from mcf.schedule.verify import purposes
from mcf.trace import Trace, TraceBuilder
from mcf.trace.outcome import Outcome

CLOCK_HZ = 200e6  # assumed, to write cycles as seconds; no claim that any part reaches it
AGREEMENT = 2e-3  # of decode outputs of two nodes, relative to the largest: states merged in another order of arrival


@dataclass(frozen=True, kw_only=True, eq=False)
class RtlOutcome(Outcome):
    """As of `ref`, and what the hardware saw: cycles, beats and waits of each link, results of the reduction units.

    `counters` are those of each node, as software reads them; `wall_s` is how long the simulation took, its compilation
    aside.
    """

    cycles: int
    phase_cycles: dict[str, int]
    links: dict[tuple[int, int], LinkUse]
    merged: int
    counters: tuple[dict[str, int], ...] = ()
    wall_s: float = 0.0
    exact_states: int = 0
    exact_merges: int = 0
    memory_beats: tuple[int, ...] = ()


class Recording:
    """Events of rows and links in cycles, outputs [L, S+T, Hq, d], of decode first of each node."""

    def __init__(self, program: Program, shape: tuple[int, ...]) -> None:
        self.program, self.sched = program, program.sched
        meta = self.sched.meta
        self.trace, self.purposes = TraceBuilder(), purposes(self.sched).tolist()
        self.phase_ends = {PREFILL: 0, CONVERGE: 0, DECODE: 0}
        self.out = np.full(shape, np.nan)
        self.decoded = np.full((meta.num_nodes, *self.out[:, meta.prompt_tokens :].shape), np.nan)

    def ended(self, index: int, tick: int, start: int, cycle: int) -> None:
        """One run of a row."""
        step = self.program.rows[index]
        self.phase_ends[step.stage] = max(self.phase_ends[step.stage], cycle)
        self._event(index, step, tick, start, cycle)

    def crossed(self, send: int, receiver: int, tick: int, start: int, cycle: int) -> None:
        """One event for each link of the schedule that the payload has crossed."""
        row, num_bytes = self.program.rows[send], int(self.sched.row_bytes[send])
        links = next(links for links, _, node in self.program.edges[send] if node == receiver)
        for a, b in links:
            self._event(send, row._replace(node=a), tick, start, cycle, b, self.purposes[send], num_bytes)

    def _event(
        self, index: int, row: Step, tick: int, start: int, end: int, peer: int = -1, purpose: int = 0, size: int = 0
    ) -> None:
        self.trace.event(
            row=index,
            kind=row.kind,
            lane=row.lane,
            stage=row.stage,
            node=row.node,
            peer=peer,
            chunk=row.chunk,
            layer=self.program.layer(tick),
            purpose=purpose,
            t_start=start / CLOCK_HZ,
            t_end=max(start, end) / CLOCK_HZ,
            payload_bytes=size,
        )

    def sample(self, cycle: int, node: int, num_bytes: int, chunk: int) -> None:
        """Record a node's bytes in use."""
        self.trace.memory(node=node, t=cycle / CLOCK_HZ, bytes_in_use=num_bytes, chunk=chunk)

    def write_out(self, row: Step, tick: int, values: Array) -> None:
        """Keep the attention output [T, Hq, d] that a node's last merge of a layer makes."""
        layer = self.program.layer(tick)
        if row.q == ALL:
            self.decoded[row.node, layer, tick // self.sched.meta.num_layers] = values[0]
        else:
            self.out[layer, self.program.positions(row.chunk, row.q, tick)] = values

    # --- the end ---

    def phases(self) -> dict[str, int]:
        """Cycles until each phase's last row had ended, from the end of the one before."""
        out, before = {}, 0
        for stage, name in ((PREFILL, "prefill"), (CONVERGE, "converge"), (DECODE, "decode")):
            out[name] = max(self.phase_ends[stage] - before, 0)
            before = max(before, self.phase_ends[stage])
        return out

    def finish(self, **meta: Any) -> Trace:
        """The trace, with what is said of it."""
        return self.trace.to_trace({**meta, "clock_hz": CLOCK_HZ})

    def output(self) -> Array:
        """All outputs. Raises RunError where nodes do not agree about what they decoded."""
        largest = max(float(np.abs(self.decoded).max(initial=0)), 1e-30)
        spread = float(np.abs(self.decoded - self.decoded[:1]).max(initial=0)) / largest
        if spread > AGREEMENT:
            raise RunError(f"decode outputs of two nodes differ by {spread:.1e}: expected at most {AGREEMENT}")
        self.out[:, self.sched.meta.prompt_tokens :] = self.decoded[0]
        return self.out
