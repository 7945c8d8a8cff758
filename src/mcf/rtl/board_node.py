"""One node of a board: its processor, and the numbers of its other ends in the simulated mesh."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.build.cxxrtl import Library, compile_module
from mcf.rtl.commands import NUM_PORTS
from mcf.rtl.cpu import Cpu
from mcf.rtl.driver import CommandRing, write_register
from mcf.rtl.hdl.core import Core
from mcf.rtl.hdl.whole import Whole
from mcf.rtl.links import LAST_BIT
from mcf.rtl.mesh.ddr import Ddr, DdrTiming
from mcf.rtl.mesh.library import Mesh as Instances

READ_PORTS = NUM_PORTS + 1  # of a whole node's memory: the compute half's, then the one for payload
Words = NDArray[np.uint32]
Open = list[Words]  # beats of a packet whose end has not come


@dataclass(kw_only=True)
class BoardNode:
    """A core with a producer of payload and a source of events, or a whole node with a memory and a sink of records."""

    core: int
    processor: Cpu
    ops: int
    results: int
    sinks: tuple[int, int]
    sets: int | None = None
    producer: int | None = None
    memory: Ddr | None = None
    records: int | None = None
    commands: CommandRing = field(default_factory=CommandRing)
    address: int = 0
    open: tuple[Open, Open] = field(default_factory=lambda: ([], []))
    open_records: Open = field(default_factory=list)

    @property
    def ddr(self) -> Ddr:
        """The memory. Raises RunError where the node is a core alone."""
        if self.memory is None:
            raise RunError("got a core, which has no memory: expected a board of whole nodes (Board(memory=...))")
        return self.memory

    @property
    def read_beats(self) -> list[int]:
        """Beats that each port has read from memory: the compute half's four, then the one for payload."""
        return [self.ddr.counts(port).beats for port in range(READ_PORTS)]

    @property
    def memory_beats(self) -> int:
        """Beats that memory has moved, read or written; 0 without one."""
        return 0 if self.memory is None else sum(self.memory.counts(port).beats for port in range(READ_PORTS + 1))

    def put(self, address: int, payload: bytes) -> None:
        """Put payload where the node's fetches find it."""
        if self.producer is not None:
            self.processor.instances.write_memory(self.producer, address, payload)
        else:
            self.ddr.write(address, payload)

    def command(self, commands: Sequence[int]) -> None:
        """Queue commands for the compute half. Raises RunError where the node is a core alone."""
        if self.memory is None:
            raise RunError("got commands for a core: expected a board of whole nodes (Board(memory=...))")
        self.processor.start(self.commands.post(commands))

    def set_event(self, event: int) -> None:
        """Set an event: as the compute half beside a core does, or by software."""
        if self.sets is not None:
            self.processor.instances.push(self.sets, np.array([[event]], np.uint32))
        else:
            self.processor.start(write_register("set_event", event=event))


def compile_node(*, is_whole: bool, waveform: bool = False) -> Library:
    """The node's library: a core, or a whole node that shows its records."""
    if is_whole:
        return compile_module(Whole(watched=True), name="whole-watched", waveform=waveform)
    return compile_module(Core(), name="core", waveform=waveform)


def node_on(instances: Instances, core: int, memory: DdrTiming | None) -> BoardNode:
    """Give an instance its processor and its ends: with a memory for whole nodes, with a producer for cores."""
    source, sink = instances.source, instances.sink
    out = BoardNode(
        core=core,
        processor=Cpu(instances, core),
        ops=source((core, "kv_ops")),
        results=sink((core, "kv_results")),
        sinks=(sink((core, "kv"), last_bit=LAST_BIT), sink((core, "control"), last_bit=LAST_BIT)),
    )
    if memory is None:
        out.sets = source((core, "sets"))
        out.producer = instances.producer(core, requests="fetch", payload="payload")
    else:
        ports = [*((core, f"reads__{port}") for port in range(READ_PORTS)), (core, "write")]
        out.memory = instances.ddr(ports, memory)
        out.records = sink((core, "records"), last_bit=LAST_BIT)
    return out


def whole_runs(held: Open, words: Words) -> Sequence[tuple[int, Words]]:
    """Cut beats [n, 5 words] at their end marks: (place of the last beat, its beats [m, 4]); the rest stays held."""
    out, start = [], 0
    for end in np.flatnonzero(words[:, 4] & 1).tolist():
        out.append((end, np.concatenate([*held, words[start : end + 1, :4]])))
        held.clear()
        start = end + 1
    if start < len(words):
        held.append(words[start:, :4])
    return out
