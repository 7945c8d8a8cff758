"""`run`: obey a schedule on a mesh of node cores, cycle by cycle; payload producers stand in for the compute half."""

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcf.errors import LawError, RunError
from mcf.rtl.board import Board
from mcf.rtl.compute import Compute
from mcf.rtl.faults import LinkFault, LinkKind, Refusal
from mcf.rtl.holding import Holding
from mcf.rtl.integers import Integers
from mcf.rtl.links import LinkUse
from mcf.rtl.lower import Lowered, lower
from mcf.rtl.lower_whole import lower_whole
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.node import Node
from mcf.rtl.number import Array
from mcf.rtl.routes import Mesh
from mcf.rtl.whole_compute import WholeCompute
from mcf.schedule.program import Program, check_tensors
from mcf.schedule.progress import Progress
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import ALL, CONVERGE, DECODE, KIND_NAMES, LANE_NAMES, PREFILL, Step
from mcf.schedule.text import grid
from mcf.schedule.verify import purposes
from mcf.trace import TraceBuilder
from mcf.trace.outcome import Outcome, Residency, certify

CLOCK_HZ = 200e6  # assumed, to write cycles as seconds; no claim that any part reaches it
REST = 4_000  # cycles in which links have said their last words
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
    waveform: bytes = b""
    exact_states: int = 0
    memory_beats: tuple[int, ...] = ()


def run(
    schedule: Schedule,
    q: Array,
    k: Array,
    v: Array,
    *,
    decode_tokens: int = 0,
    mesh: Mesh,
    links: LinkKind = LinkKind.CREDIT,
    latency: int = 1,
    stall: float = 0.0,
    noise: float = 0.0,
    faults: Sequence[LinkFault | Refusal] = (),
    waveform: bool = False,
    whole: bool = False,
    memory: DdrTiming | None = None,
) -> RtlOutcome:
    """Run a schedule that `verify` has passed on a mesh of node cores, compiled for simulation.

    q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d], T = `decode_tokens`, as `mcf.ref.run`. KV, queries and states of
    prefill travel in the schedule's bytes per element; states of decode in block floating point, merged by the
    reduction units. Compute takes no time, unless nodes are `whole`: then compute halves attend, out of memories of
    their own (`memory`), states are records, and each is compared with the golden model.
    Links as of `mcf.rtl.links.Links`: `faults` and `noise` damage beats of plain links, whose packets are then
    dropped, and words of the link layer, which then sends them again.
    Raises ScheduleError for what does not fit the hardware, ToolError without a compiler, RunError when a node drops
    something, a link falls silent or the mesh stands still.
    """
    program = Program(schedule, decode_tokens)
    tensors = check_tensors(program, q=q, k=k, v=v)
    timing = (memory or DdrTiming()) if whole else None
    low = lower(schedule, mesh) if timing is None else lower_whole(schedule, mesh, memory_bytes=timing.size_bytes)
    board = Board(
        mesh, links=links, latency=latency, stall=stall, noise=noise, faults=faults, waveform=waveform, memory=timing
    )
    start = time.perf_counter()
    try:
        out = Run(program, board, low, tensors).run()
        wall_s = time.perf_counter() - start
        return replace(out, wall_s=wall_s, waveform=board.take_waveform() if waveform else b"")
    finally:
        board.close()


class Run:
    """One run: progress of every row, sends under way, outputs and trace."""

    def __init__(self, program: Program, board: Board, low: Lowered, tensors: tuple[Array, ...]) -> None:
        sched = program.sched
        self.sched, self.board, self.low = sched, board, low
        self.program, self.tensors = program, tensors
        self.integers = Integers(sched.meta, tensors) if low.is_whole else None
        self.progress = Progress(program)
        self.num_started = [0] * len(self.program.rows)
        self.credits: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.waiting: list[tuple[int, int, list[int]]] = []  # sends, and the receivers that have not all posted
        self.under_way: dict[tuple[int, int], tuple[int, set[int]]] = {}  # (row, tick) -> first cycle, nodes to reach
        self.trace, self.purposes = TraceBuilder(), purposes(sched).tolist()
        self.phase_ends = {PREFILL: 0, CONVERGE: 0, DECODE: 0}
        self.out = np.full(self.tensors[0].shape, np.nan)
        self.decoded = np.full((sched.meta.num_nodes, *self.tensors[0][:, sched.meta.prompt_tokens :].shape), np.nan)
        self.nodes = [Node(self, n) for n in range(sched.meta.num_nodes)]

    def compute_of(self, number: int) -> Holding:
        """What a node's compute half is."""
        if self.integers is not None:
            return WholeCompute(self.program, number, self.board, self.low, self.integers, end=self.end_attend)
        v_scale = max(float(np.abs(self.tensors[2]).max(initial=0)), 1e-30)
        return Compute(self.program, number, self.board, v_scale=v_scale, end=self.end)

    def run(self) -> RtlOutcome:
        """Write the tables, then let nodes and mesh take turns to the end."""
        for number in range(self.sched.meta.num_nodes):
            self.board.write_routes(number, self.low.embedding.tables.words(number).items())
        self.board.settle()
        while True:
            done = self._start_rows()
            if not self._unfinished():
                break
            moving = self.board.run()
            if not (done + self._take_in() or moving):
                self._stuck()
        cycles = self.board.cycle  # software reads the counters afterwards
        self.board.check_drops()
        return self._outcome(cycles)

    def _start_rows(self) -> int:
        total, done = 0, 1
        while done:
            done = sum(node.run_memory() + sum(node.run_lane(lane) for lane in LANE_NAMES) for node in self.nodes)
            done += self._launch()
            total += done
        return total

    def _launch(self) -> int:
        ready = [one for one in self.waiting if self._have_posted(*one)]
        for row, tick, group in ready:
            self.waiting.remove((row, tick, group))
            self.under_way.setdefault((row, tick), (self.board.cycle, set(self.sched.receivers(row))))
            self.nodes[self.program.rows[row].node].sending.launch(row, tick, group)
        return len(ready)

    def _have_posted(self, row: int, tick: int, group: list[int]) -> bool:
        return all(self.credits[row][node] > tick for node in group)

    def _take_in(self) -> int:
        done = 0
        for node in self.nodes:
            done += node.directory.collect() + node.compute.watch()
            for packet in self.board.packets(node.number):
                node.receiving.take(packet)
                done += 1
        return done

    def _unfinished(self) -> bool:
        rows_left = any(node.next_row(lane) is not None for node in self.nodes for lane in LANE_NAMES)
        asked = any(node.directory.asked for node in self.nodes)
        memory_left = not all(node.progress.has_ended for node in self.nodes)
        at_work = any(node.compute.is_busy for node in self.nodes)
        return rows_left or asked or memory_left or at_work or bool(self.waiting or self.under_way)

    def _stuck(self) -> None:
        self.board.check_drops()
        self.board.links.check_losses()
        reasons = []
        for node in self.nodes:
            for lane in LANE_NAMES:
                if (inst := node.next_row(lane)) is not None:
                    row = f"row {inst.row} ({KIND_NAMES[self.program.rows[inst.row].kind]})"
                    reasons.append((inst.row, f"node {node.number} {row} waits for {node.blocked(inst)}"))
        reasons += [(row, f"send row {row} has not arrived") for row, _ in self.under_way]
        reasons += [(row, f"send row {row} has no posted receive") for row, _, _ in self.waiting]
        if not reasons:
            raise RunError("the mesh stands still: expected every packet to arrive on links without faults")
        first, text = reasons[0]
        raise LawError("V6", f"the mesh stands still: {text}", row=first, grid=grid(self.sched, mark=first))

    # --- progress, as nodes report it ---

    def all_started(self, row: int) -> bool:
        """Say whether every run of a row has started."""
        return self.num_started[row] == len(self.progress.ended[row])

    def depart(self, row: int, tick: int) -> None:
        """A send has started; it leaves for each group of receivers when all of the group have posted."""
        self.waiting += [(row, tick, group) for group in self.low.groups(row)]

    def end(self, row: int, tick: int, cycle: int | None = None) -> None:
        """Record that one run of a row has ended."""
        at = self.board.cycle if cycle is None else cycle
        self.end_attend(row, tick, at, at)

    def end_attend(self, row: int, tick: int, start: int, cycle: int) -> None:
        """Record that one run of a row that took time has ended."""
        self.progress.end(row, tick)
        step = self.program.rows[row]
        self.phase_ends[step.stage] = max(self.phase_ends[step.stage], cycle)
        self._event(row, step, tick, start, cycle)

    def delivered(self, recv: int, tick: int, cycle: int) -> None:
        """A receive is complete; with the last one the send is."""
        step = self.program.rows[recv]
        start, left = self.under_way[step.ref, tick]
        self._crossed(step.ref, step.node, tick, start, cycle)
        self.end(recv, tick, cycle)
        left.discard(step.node)
        if not left:
            del self.under_way[step.ref, tick]
            self.end(step.ref, tick, cycle)
            self.nodes[self.program.rows[step.ref].node].sending.done(step.ref, tick)

    def _crossed(self, send: int, receiver: int, tick: int, start: int, cycle: int) -> None:
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

    def sample(self, node: int, num_bytes: int, chunk: int) -> None:
        """Record a node's bytes in use."""
        self.trace.memory(node=node, t=self.board.cycle / CLOCK_HZ, bytes_in_use=num_bytes, chunk=chunk)

    def write_out(self, row: Step, tick: int, values: Array) -> None:
        """Keep the attention output [T, Hq, d] that a node's last merge of a layer makes."""
        layer = self.program.layer(tick)
        if row.q == ALL:
            self.decoded[row.node, layer, tick // self.sched.meta.num_layers] = values[0]
        else:
            self.out[layer, self.program.positions(row.chunk, row.q, tick)] = values

    # --- the end ---

    def _outcome(self, cycles: int) -> RtlOutcome:
        meta = self.sched.meta
        self.board.run_for(REST)
        counters = tuple(self.board.counters())
        meta_of_trace = {"executor": "rtl", "policy": meta.policy, "cycles": cycles, "clock_hz": CLOCK_HZ}
        return RtlOutcome(
            out=self._output(),
            trace=self.trace.to_trace(meta_of_trace),
            residency=Residency(
                shape=(meta.num_chunks, meta.num_nodes, meta.num_groups),
                changes=tuple(tuple(sorted(n.directory.changes, key=lambda change: change[0])) for n in self.nodes),
            ),
            peak_bytes=tuple(node.compute.peak for node in self.nodes),
            certificate=certify(self._directories(), self.sched.tokens, np.diff(meta.head_cuts) / meta.num_kv_heads),
            cycles=cycles,
            phase_cycles=self._phases(),
            links=self.board.link_use(),
            merged=sum(counts["merged"] for counts in counters),
            exact_states=sum(node.compute.num_exact for node in self.nodes),
            memory_beats=tuple(node.memory_beats for node in self.board.nodes),
            counters=counters,
        )

    def _phases(self) -> dict[str, int]:
        """Cycles until each phase's last row had ended, from the end of the one before."""
        out, before = {}, 0
        for stage, name in ((PREFILL, "prefill"), (CONVERGE, "converge"), (DECODE, "decode")):
            out[name] = max(self.phase_ends[stage] - before, 0)
            before = max(before, self.phase_ends[stage])
        return out

    def _directories(self) -> list[Array]:
        """[C, N, G, L] per node, read from what its directory answered."""
        shape = (self.sched.meta.num_chunks, self.sched.meta.num_nodes, self.sched.meta.num_groups)
        out = []
        for node in self.nodes:
            states = np.zeros(shape, np.uint8)
            for _, chunk, maker, group, state in node.directory.changes:
                states[chunk, maker, group] = state
            out.append(states[..., None])
        return out

    def _output(self) -> Array:
        largest = max(float(np.abs(self.decoded).max(initial=0)), 1e-30)
        spread = float(np.abs(self.decoded - self.decoded[:1]).max(initial=0)) / largest
        if spread > AGREEMENT:
            raise RunError(f"decode outputs of two nodes differ by {spread:.1e}: expected at most {AGREEMENT}")
        self.out[:, self.sched.meta.prompt_tokens :] = self.decoded[0]
        return self.out


__all__ = ["RtlOutcome", "run"]
