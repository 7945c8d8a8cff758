"""What all nodes of a reference run share, each other's memory apart: tensors, progress, transfers, the trace."""

from dataclasses import dataclass, field

import numpy as np

from mcf.errors import RunError
from mcf.schedule.program import Instance, Program
from mcf.schedule.progress import Progress
from mcf.schedule.steps import ALL, Step
from mcf.schedule.verify import purposes
from mcf.trace import TraceBuilder
from mcf.trace.outcome import Array

AGREEMENT = 1e-12  # decode outputs of two nodes: the same states merged in the same order


@dataclass(frozen=True, kw_only=True, eq=False)
class Tensors:
    """q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d]: what the dense layers of a model would make."""

    q: Array
    k: Array
    v: Array


@dataclass(kw_only=True, eq=False)
class Flight:
    """A send under way: deliveries that are left, nodes that have the payload."""

    inst: Instance
    tick: int
    left: list[tuple[tuple[tuple[int, int], ...], int, int]]
    reached: set[int] = field(default_factory=set)


class World:
    """Progress of every row, transfers under way, outputs and trace; time is the number of things done so far."""

    def __init__(self, program: Program, tensors: Tensors) -> None:
        self.program, self.tensors = program, tensors
        self.meta = program.sched.meta
        self.progress = Progress(program)
        self.posted: set[tuple[int, int]] = set()
        self.flights: list[Flight] = []
        self.clock = 0
        self.trace = TraceBuilder()
        self.purposes = purposes(program.sched).tolist()
        scale_bytes = self.meta.kv_scale_bytes / self.meta.head_dim
        self.widths = (0, self.meta.kv_bytes + scale_bytes, self.meta.act_bytes, 4)
        self.out = np.full_like(tensors.q, np.nan)
        num_tokens = tensors.q.shape[1] - self.meta.prompt_tokens
        self.decoded = np.full((self.meta.num_nodes, self.meta.num_layers, num_tokens, *tensors.q.shape[2:]), np.nan)

    # --- progress ---

    def end(self, row: int, tick: int) -> None:
        """Record that one run of a row has ended."""
        self.progress.end(row, tick)
        step = self.program.rows[row]
        self._event(row, step, tick)

    def launch(self, inst: Instance) -> None:
        """Put a send on its way."""
        row = self.program.rows[inst.row]
        flight = Flight(inst=inst, tick=inst.it + row.ahead, left=list(self.program.edges[inst.row]))
        flight.reached.add(row.node)
        self.flights.append(flight)

    # --- positions ---

    def cell_positions(self, cells: list[tuple[int, int, int]]) -> Array:
        """Token positions of blocks, in the order in which a store gathers them."""
        blocks = dict.fromkeys(cell[:2] for cell in cells)
        return np.concatenate([self.program.positions(chunk, maker, 0) for chunk, maker in blocks])

    # --- outputs and trace ---

    def write_out(self, row: Step, tick: int, values: Array) -> None:
        """Keep the attention output [T, Hq, d] that a node's last merge of a layer makes."""
        layer = self.program.layer(tick)
        if row.q == ALL:
            self.decoded[row.node, layer, tick // self.meta.num_layers] = values[0]
        else:
            self.out[layer, self.program.positions(row.chunk, row.q, tick)] = values

    def output(self) -> Array:
        """[L, S+T, Hq, d]; raises RunError when two nodes decoded different values."""
        spread = np.abs(self.decoded - self.decoded[:1]).max(initial=0)
        if spread > AGREEMENT:
            raise RunError(f"decode outputs of two nodes differ by {spread:.1e}: expected at most {AGREEMENT}")
        self.out[:, self.meta.prompt_tokens :] = self.decoded[0]
        return self.out

    def moved(self, flight: Flight, links: tuple[tuple[int, int], ...], num_elements: int) -> None:
        """Record a payload's crossing of each link."""
        row = self.program.rows[flight.inst.row]
        size = round(num_elements * self.widths[row.payload])
        for a, b in links:
            self._event(flight.inst.row, row._replace(node=a), flight.tick, b, self.purposes[flight.inst.row], size)

    def sample(self, node: int, num_bytes: int, chunk: int) -> None:
        """Record a node's bytes in use."""
        self.trace.memory(node=node, t=float(self.clock), bytes_in_use=num_bytes, chunk=chunk)

    def _event(self, index: int, row: Step, tick: int, peer: int = -1, purpose: int = 0, size: int = 0) -> None:
        start, self.clock = self.clock, self.clock + 1
        self.trace.event(
            row=index, kind=row.kind, lane=row.lane, stage=row.stage, node=row.node, peer=peer, chunk=row.chunk,
            layer=self.program.layer(tick), purpose=purpose,
            t_start=float(start), t_end=float(self.clock), payload_bytes=size,
        )  # fmt: skip
