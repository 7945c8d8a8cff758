"""A mesh of nodes as the executor sees it: descriptors in, packets out, tables, directories, link counts.

Each node has a processor (mcf.rtl.cpu) that reaches it over AXI4-Lite alone. Nodes are cores, and what stands in for
the compute half (payload, packets, directory) is joined to the core's streams; or whole nodes, each with a memory.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.board_node import compile_node, node_on, whole_runs
from mcf.rtl.driver import Program, read_counters, read_errors, read_register, start, write_tables
from mcf.rtl.faults import LinkFault, LinkKind, Refusal
from mcf.rtl.golden.dma import beats_of
from mcf.rtl.kv_ops import KvCode
from mcf.rtl.links import LAST_BIT, Links, LinkUse
from mcf.rtl.mesh.ddr import DdrTiming
from mcf.rtl.mesh.library import Mesh as Instances
from mcf.rtl.mesh.library import Stop
from mcf.rtl.registers import COUNTERS, NUM_SLOTS
from mcf.rtl.routes import Mesh
from mcf.rtl.still import look, said

T = TypeVar("T")
BEAT_WORDS = 5
# What a run on links without faults must not see: counter -> how it is called.
LOSSES: Mapping[str, str] = {
    **{f"dropped_{why}": why for why in ("header", "route", "port", "length", "operation", "payload", "state")},
    "refused_slot": "a slot's set-up",
    "descriptors_bad": "a descriptor",
}
_COUNTER_CYCLES = 2 * len(COUNTERS)  # until all that has happened is counted


class Packet(NamedTuple):
    """One packet that reached a node: the cycle of its last beat, its header, its payload."""

    cycle: int
    header: int
    payload: bytes

    @property
    def beats(self) -> list[int]:
        """The payload as numbers of 128 bits."""
        return beats_of(self.payload)


class Board:
    """W x H nodes with links between them (`mcf.rtl.links`): whole ones where `memory` says how theirs behaves."""

    def __init__(
        self,
        mesh: Mesh,
        *,
        links: LinkKind = LinkKind.PLAIN,
        latency: int = 1,
        stall: float = 0.0,
        noise: float = 0.0,
        faults: Sequence[LinkFault | Refusal] = (),
        waveform: bool = False,
        memory: DdrTiming | None = None,
    ) -> None:
        self.mesh = mesh
        self.instances = Instances()
        library = compile_node(is_whole=memory is not None, waveform=waveform)
        cores = [self.instances.instance(library) for _ in range(mesh.num_nodes)]
        on_links = [fault for fault in faults if isinstance(fault, LinkFault)]
        self.links = Links(
            self.instances, mesh, cores, kind=links, latency=latency, stall=stall, noise=noise, faults=on_links
        )
        self.nodes = [node_on(self.instances, core, memory) for core in cores]
        self._beats = 0
        for number, node in enumerate(self.nodes):
            y, x = divmod(number, mesh.width)
            program = start(node=number, x=x, y=y, last=mesh.num_nodes - 1, is_counting=False, has_interrupt=True)
            node.processor.start(program)
        for fault in faults:
            if isinstance(fault, Refusal):
                for sink in self.nodes[fault.node].sinks:
                    self.instances.hold(sink, fault.at, fault.cycles)
        if waveform:
            self.instances.open_waveform(cores, [f"node{n}" for n in range(mesh.num_nodes)])

    def close(self) -> None:
        """Give everything back."""
        self.instances.close()

    @property
    def cycle(self) -> int:
        """Cycles so far."""
        return self.instances.cycle

    # --- tables and descriptors ---

    def ask(self, node: int, program: Program[T]) -> T:
        """Run a driver's program on a node's processor, behind those that it has, to its end; time goes by."""
        return self.ask_all({node: program})[node]

    def ask_all(self, programs: Mapping[int, Program[T]]) -> dict[int, T]:
        """Run programs on several processors at a time."""
        results = {node: self.nodes[node].processor.start(program) for node, program in programs.items()}
        while not all(results.values()):
            self._go_on()
            if self.instances.run(wake=True) is Stop.QUIET and not all(results.values()):
                raise RunError("a node does not answer its processor: expected an answer within a few cycles")
        return {node: result[0] for node, result in results.items()}

    def settle(self) -> None:
        """Go on until every processor has run its programs."""
        while any(node.processor.is_busy for node in self.nodes):
            self._go_on()
            self.instances.run(wake=True)

    def write_routes(self, node: int, entries: Iterable[tuple[int, int]]) -> None:
        """Write entries (route, 16 bits) of a node's table."""
        self.nodes[node].processor.start(write_tables(dict(entries), {}))

    def arm(self, node: int, setups: Iterable[int]) -> None:
        """Arm reduction slots: set-ups as the hardware takes them."""
        tables = {setup >> LAST_BIT & NUM_SLOTS - 1: setup for setup in setups}
        self.nodes[node].processor.start(write_tables({}, tables))

    def armed(self, node: int) -> int:
        """The mask of slots in use."""
        return self.ask(node, read_register("slots_armed"))["armed"]

    def ask_directory(self, node: int, op: int, kv_id: int, *, owner: bool = False) -> None:
        """Put an operation to a node's replica directory."""
        self.instances.push(self.nodes[node].ops, _words([op | kv_id << 4 | int(owner) << 36], 2))

    def answers(self, node: int) -> Iterator[tuple[KvCode, int]]:
        """What the directory said since the last call, in order: code, state."""
        if not self.instances.held(self.nodes[node].results):
            return
        _, words = self.instances.take(self.nodes[node].results, 1)
        for word in words[:, 0].tolist():
            yield KvCode(word >> 4 & 7), word >> 23 & 7

    def store(self, node: int, payload: bytes) -> int:
        """Put payload where the node finds it, behind what was stored before; its address."""
        it = self.nodes[node]
        at, it.address = it.address, it.address + len(payload)
        it.put(at, payload)
        return at

    def post(self, node: int, descriptors: Iterable[int]) -> None:
        """Queue descriptors for a node's ring."""
        processor = self.nodes[node].processor
        processor.start(processor.rings.post(list(descriptors)))

    def command(self, node: int, commands: Iterable[int]) -> None:
        """Queue commands for a whole node's compute half. Where its ring is full the processor waits for room."""
        self.nodes[node].command(list(commands))

    def set_event(self, node: int, event: int) -> None:
        """Set an event: as the compute half beside a core does, or by software."""
        self.nodes[node].set_event(event)

    # --- running ---

    def run(self) -> bool:
        """Go on until something reaches a node; False when nothing can move any more.

        Raises RunError naming a link when for `links.patience` cycles no link and no memory has moved a beat.
        """
        stop = self.wait(self.links.patience)
        before, self._beats = self._beats, sum(node.memory_beats for node in self.nodes)
        if stop is Stop.LIMIT and self._beats == before:
            self.links.check_progress()
        return stop is not Stop.QUIET

    def run_for(self, cycles: int) -> bool:
        """Go on for so many cycles, whatever reaches a node; False when nothing can move any more."""
        self._go_on()
        return self.instances.run(cycles) is not Stop.QUIET

    def wait(self, cycles: int) -> Stop:
        """Go on until a sink takes something, whether links move or not; processors do their work meanwhile."""
        stop = Stop.ANSWERED
        while stop is Stop.ANSWERED:
            self._go_on()
            stop = self.instances.run(cycles, wake=True)
        return stop

    def _go_on(self) -> None:
        for node in self.nodes:
            node.processor.go_on()

    def packets(self, node: int) -> Iterator[Packet]:
        """Packets that have reached a node since the last call: data first, then control."""
        for which, sink in enumerate(self.nodes[node].sinks):
            if self.instances.held(sink):
                yield from self._packets(node, which)

    def _packets(self, node: int, which: int) -> Iterator[Packet]:
        it = self.nodes[node]
        cycles, words = self.instances.take(it.sinks[which], BEAT_WORDS)
        for end, beats in whole_runs(it.open[which], words):
            header = int.from_bytes(beats[0].tobytes(), "little")
            yield Packet(int(cycles[end]), header, beats[1:].tobytes())

    def records(self, node: int) -> Iterator[tuple[int, list[int]]]:
        """Records that have left a whole node's compute half since the last call: the last beat's cycle, all beats."""
        it = self.nodes[node]
        if it.records is None or not self.instances.held(it.records):
            return
        cycles, words = self.instances.take(it.records, BEAT_WORDS)
        for end, beats in whole_runs(it.open_records, words):
            yield int(cycles[end]), [int.from_bytes(beat.tobytes(), "little") for beat in beats]

    # --- what happened ---

    def why_still(self) -> str:
        """Which whole node waits for what, in one line, where nothing moves any more."""
        return said(list(self.ask_all({number: look(node) for number, node in enumerate(self.nodes)}).values()))

    def take_waveform(self) -> bytes:
        """The value change dump of all cores since the last call, where the board records one."""
        return self.instances.take_waveform()

    def link_use(self) -> dict[tuple[int, int], LinkUse]:
        """Of each link of the mesh."""
        return self.links.use()

    def counters(self) -> list[dict[str, int]]:
        """All counters of each node."""
        self.instances.run(_COUNTER_CYCLES)
        return list(self.ask_all({number: read_counters() for number in range(len(self.nodes))}).values())

    def check_drops(self) -> None:
        """Raise RunError naming the first node that dropped something."""
        errors = self.ask_all({number: read_errors() for number in range(len(self.nodes))})
        if not any(set(names) - {"link"} for names in errors.values()):
            return
        for number, found in enumerate(self.counters()):
            lost = {why: found[name] for name, why in LOSSES.items() if found[name]}
            if lost:
                said = ", ".join(f"{count} for {why}" for why, count in lost.items())
                raise RunError(f"node {number} dropped packets ({said}): expected none on links without faults")
            if others := [name for name in errors[number] if name != "link"]:  # refused words are sent again
                raise RunError(f"node {number} reports errors ({', '.join(others)}): expected none")


def _words(values: Iterable[int], num_words: int) -> NDArray[np.uint32]:
    joined = b"".join(value.to_bytes(4 * num_words, "little") for value in values)
    return np.frombuffer(joined, "<u4").reshape(-1, num_words)
