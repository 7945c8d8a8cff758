"""A mesh of node cores as the executor sees it: descriptors in, packets out, tables, directories, link counts.

Each core has a processor (mcf.rtl.cpu) that reaches it over AXI4-Lite alone; what stands in for the compute half
(payload, packets, directory) is joined to the core's streams.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.cpu import Cpu
from mcf.rtl.driver import Program, read_counters, read_errors, read_register, start, write_tables
from mcf.rtl.faults import LinkFault, LinkKind, Refusal
from mcf.rtl.hdl.core import Core
from mcf.rtl.kv_ops import KvCode
from mcf.rtl.links import LAST_BIT, Links, LinkUse
from mcf.rtl.mesh.library import Mesh as Instances
from mcf.rtl.mesh.library import Stop
from mcf.rtl.registers import COUNTERS, NUM_SLOTS
from mcf.rtl.routes import Mesh

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


@dataclass(kw_only=True)
class _Node:
    """A node's processor, and the numbers of its other ends in the mesh."""

    core: int
    processor: Cpu
    sets: int
    ops: int
    producer: int
    results: int
    sinks: tuple[int, int]
    address: int = 0
    open: tuple[list[NDArray[np.uint32]], list[NDArray[np.uint32]]] = field(default_factory=lambda: ([], []))


class Board:
    """W x H cores with links between them (`mcf.rtl.links`)."""

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
    ) -> None:
        self.mesh = mesh
        self.instances = Instances()
        library = compile_module(Core(), name="core", waveform=waveform)
        cores = [self.instances.instance(library) for _ in range(mesh.num_nodes)]
        on_links = [fault for fault in faults if isinstance(fault, LinkFault)]
        self.links = Links(
            self.instances, mesh, cores, kind=links, latency=latency, stall=stall, noise=noise, faults=on_links
        )
        self.nodes = [self._node(core) for core in cores]
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
        """Put payload where the node's producer finds it; its address."""
        it = self.nodes[node]
        at, it.address = it.address, it.address + len(payload)
        self.instances.write_memory(it.producer, at, payload)
        return at

    def post(self, node: int, descriptors: Iterable[int]) -> None:
        """Queue descriptors for a node's ring."""
        processor = self.nodes[node].processor
        processor.start(processor.rings.post(list(descriptors)))

    def set_event(self, node: int, event: int) -> None:
        """Set an event as the compute half does."""
        self.instances.push(self.nodes[node].sets, _words([event], 1))

    # --- running ---

    def run(self) -> bool:
        """Go on until something reaches a node; False when nothing can move any more.

        Raises RunError naming a link when for `links.patience` cycles no link has moved a beat.
        """
        stop = self.wait(self.links.patience)
        if stop is Stop.LIMIT:
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
        start = 0
        for end in np.flatnonzero(words[:, 4] & 1).tolist():
            beats = np.concatenate([*it.open[which], words[start : end + 1, :4]])
            it.open[which].clear()
            header = int.from_bytes(beats[0].tobytes(), "little")
            yield Packet(int(cycles[end]), header, beats[1:].tobytes())
            start = end + 1
        if start < len(words):
            it.open[which].append(words[start:, :4])

    # --- what happened ---

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

    # --- building ---

    def _node(self, core: int) -> _Node:
        source, sink = self.instances.source, self.instances.sink
        return _Node(
            core=core,
            processor=Cpu(self.instances, core),
            sets=source((core, "sets")),
            ops=source((core, "kv_ops")),
            producer=self.instances.producer(core, requests="fetch", payload="payload"),
            results=sink((core, "kv_results")),
            sinks=(sink((core, "kv"), last_bit=LAST_BIT), sink((core, "control"), last_bit=LAST_BIT)),
        )


def _words(values: Iterable[int], num_words: int) -> NDArray[np.uint32]:
    joined = b"".join(value.to_bytes(4 * num_words, "little") for value in values)
    return np.frombuffer(joined, "<u4").reshape(-1, num_words)
