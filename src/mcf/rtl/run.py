"""`run`: obey a schedule on a mesh of node cores, cycle by cycle; payload producers stand in for the compute half."""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mcf.errors import LawError, RunError
from mcf.rtl.board import Board
from mcf.rtl.compute import Compute
from mcf.rtl.faults import LinkFault, LinkKind, Refusal
from mcf.rtl.holding import Holding
from mcf.rtl.integers import Integers
from mcf.rtl.lower import Lowered, lower
from mcf.rtl.lower_whole import lower_whole
from mcf.rtl.merge_check import MergeCheck
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.node import Node
from mcf.rtl.number import Array
from mcf.rtl.recording import CLOCK_HZ, Recording, RtlOutcome
from mcf.rtl.routes import Mesh
from mcf.rtl.whole_compute import WholeCompute
from mcf.schedule.program import Program, check_tensors
from mcf.schedule.progress import Progress
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import KIND_NAMES, LANE_NAMES
from mcf.schedule.text import grid
from mcf.trace.outcome import Residency, certify

REST = 4_000  # cycles in which links have said their last words


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
    waveform: Callable[[bytes], object] | None = None,
    whole: bool = False,
    memory: DdrTiming | None = None,
) -> RtlOutcome:
    """Run a schedule that `verify` has passed on a mesh of node cores, compiled for simulation.

    q [L, S+T, Hq, d], k and v [L, S+T, Hkv, d], T = `decode_tokens`, as `mcf.ref.run`. KV, queries and states of
    prefill travel in the schedule's bytes per element; states of decode in block floating point, merged by the
    reduction units. Compute takes no time, unless nodes are `whole`: then compute halves attend, out of memories of
    their own (`memory`), states are records, and each is compared with the golden model.
    Links as of `mcf.rtl.links.Links`: `faults` and `noise` damage beats of plain links, whose packets are then
    dropped, and words of the link layer, which then sends them again. `waveform` is given a value change dump of the
    nodes' wires (not of the link layers), piece by piece.
    Raises ScheduleError for what does not fit the hardware, ToolError without a compiler, RunError when a node drops
    something, a link falls silent or the mesh stands still.
    """
    program = Program(schedule, decode_tokens)
    tensors = check_tensors(program, q=q, k=k, v=v)
    timing = (memory or DdrTiming()) if whole else None
    low = lower(schedule, mesh) if timing is None else lower_whole(schedule, mesh, memory_bytes=timing.size_bytes)
    is_recording = waveform is not None
    board = Board(
        mesh,
        links=links,
        latency=latency,
        stall=stall,
        noise=noise,
        faults=faults,
        waveform=is_recording,
        memory=timing,
    )
    start = time.perf_counter()
    try:
        out = Run(program, board, low, tensors, waveform).run()
        return replace(out, wall_s=time.perf_counter() - start)
    finally:
        board.close()


class Run:
    """One run: progress of every row, sends under way, outputs and trace."""

    def __init__(
        self,
        program: Program,
        board: Board,
        low: Lowered,
        tensors: tuple[Array, ...],
        waveform: Callable[[bytes], object] | None = None,
    ) -> None:
        sched = program.sched
        self.sched, self.board, self.low = sched, board, low
        self.program, self.tensors, self.waveform = program, tensors, waveform
        self.integers = Integers(sched.meta, tensors) if low.is_whole else None
        self.progress = Progress(program)
        self.num_started = [0] * len(self.program.rows)
        self.credits: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self.waiting: list[tuple[int, int, list[int]]] = []  # sends, and the receivers that have not all posted
        self.under_way: dict[tuple[int, int], tuple[int, set[int]]] = {}  # (row, tick) -> first cycle, nodes to reach
        self.recording = Recording(program, tensors[0].shape)
        self.merge_check = MergeCheck(program, low, lambda number: self.nodes[number].compute)
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
            self._record()
            if not (done + self._take_in() or moving):
                self._stuck()
        cycles = self.board.cycle  # software reads the counters afterwards
        self.board.check_drops()
        self._record()
        return self._outcome(cycles)

    def _record(self) -> None:
        if self.waveform is not None and (text := self.board.take_waveform()):
            self.waveform(text)

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
        self.recording.ended(row, tick, start, cycle)

    def delivered(self, recv: int, tick: int, cycle: int) -> None:
        """A receive is complete; with the last one the send is."""
        step = self.program.rows[recv]
        start, left = self.under_way[step.ref, tick]
        self.recording.crossed(step.ref, step.node, tick, start, cycle)
        self.end(recv, tick, cycle)
        left.discard(step.node)
        if not left:
            del self.under_way[step.ref, tick]
            self.end(step.ref, tick, cycle)
            self.nodes[self.program.rows[step.ref].node].sending.done(step.ref, tick)

    # --- the end ---

    def _outcome(self, cycles: int) -> RtlOutcome:
        meta = self.sched.meta
        self.board.run_for(REST)
        counters = tuple(self.board.counters())
        return RtlOutcome(
            out=self.recording.output(),
            trace=self.recording.finish(executor="rtl", policy=meta.policy, cycles=cycles),
            residency=Residency(
                shape=(meta.num_chunks, meta.num_nodes, meta.num_groups),
                changes=tuple(tuple(sorted(n.directory.changes, key=lambda change: change[0])) for n in self.nodes),
            ),
            peak_bytes=tuple(node.compute.peak for node in self.nodes),
            certificate=certify(self._directories(), self.sched.tokens, np.diff(meta.head_cuts) / meta.num_kv_heads),
            cycles=cycles,
            phase_cycles=self.recording.phases(),
            links=self.board.link_use(),
            merged=sum(counts["merged"] for counts in counters),
            exact_states=sum(node.compute.num_exact for node in self.nodes),
            exact_merges=self.merge_check.num_exact,
            memory_beats=tuple(node.memory_beats for node in self.board.nodes),
            counters=counters,
        )

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


__all__ = ["CLOCK_HZ", "RtlOutcome", "run"]
