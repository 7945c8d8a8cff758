"""A mesh of node cores as the executor sees it: descriptors in, packets out, tables, directories, link counts."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from amaranth.hdl import Elaboratable
from numpy.typing import NDArray

from mcf.errors import RunError
from mcf.rtl.build.cxxrtl import compile_module
from mcf.rtl.descriptor import words_of
from mcf.rtl.faults import LinkFault, LinkKind, Refusal
from mcf.rtl.hdl.core import DROPS, Core
from mcf.rtl.kv_ops import KvCode
from mcf.rtl.links import LAST_BIT, PATIENCE, Links, LinkUse
from mcf.rtl.mesh.library import Mesh as Instances
from mcf.rtl.mesh.library import Stop
from mcf.rtl.registers import NUM_DESCRIPTORS
from mcf.rtl.routes import Mesh

BEAT_WORDS = 5
RING = 2 * NUM_DESCRIPTORS  # how `head` and `tail` count
_WORDS_OF_A_DESCRIPTOR = 8


class Packet(NamedTuple):
    """One packet that reached a node: the cycle of its last beat, its header, its payload."""

    cycle: int
    header: int
    payload: bytes


@dataclass(kw_only=True)
class _Node:
    """Numbers of a node's ends in the mesh, and what waits for its ring."""

    core: int
    ring: int
    routes: int
    slots: int
    ops: int
    producer: int
    results: int
    sinks: tuple[int, int]
    tail: int = 0
    address: int = 0
    waiting: deque[int] = field(default_factory=deque)
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
        library = compile_module(_used(Core()), name="core", waveform=waveform)
        cores = [self.instances.instance(library) for _ in range(mesh.num_nodes)]
        on_links = [fault for fault in faults if isinstance(fault, LinkFault)]
        self.links = Links(
            self.instances, mesh, cores, kind=links, latency=latency, stall=stall, noise=noise, faults=on_links
        )
        self.nodes = [self._node(core) for core in cores]
        for fault in faults:
            if isinstance(fault, Refusal):
                for sink in self.nodes[fault.node].sinks:
                    self.instances.hold(sink, fault.at, fault.cycles)
        for node in self.nodes:
            self.instances.poke(node.core, "enable", 1)
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

    def write_routes(self, node: int, entries: Iterable[tuple[int, int]]) -> None:
        """Write entries (route, 16 bits) of a node's table."""
        self.instances.push(self.nodes[node].routes, _words((route | word << 10 for route, word in entries), 1))

    def arm(self, node: int, setups: Iterable[int]) -> None:
        """Arm reduction slots: set-ups as the hardware takes them."""
        self.instances.push(self.nodes[node].slots, _words(setups, 5))

    def armed(self, node: int) -> int:
        """The mask of slots in use."""
        return self.instances.peek(self.nodes[node].core, "busy")

    def ask_directory(self, node: int, op: int, kv_id: int, *, owner: bool = False) -> None:
        """Put an operation to a node's replica directory."""
        self.instances.push(self.nodes[node].ops, _words([op | kv_id << 4 | int(owner) << 36], 2))

    def answers(self, node: int) -> Iterator[tuple[KvCode, int]]:
        """What the directory said since the last call, in order: code, state."""
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
        self.nodes[node].waiting.extend(descriptors)

    # --- running ---

    def run(self, cycles: int | None = None) -> bool:
        """Go on until something reaches a node, or for so many cycles; False when nothing can move any more.

        Raises RunError naming a link when for PATIENCE cycles no link has moved a beat.
        """
        if self.write_descriptors():
            return True
        stop = self.instances.run(PATIENCE, wake=True) if cycles is None else self.instances.run(cycles)
        if cycles is None and stop is Stop.LIMIT:
            self.links.check_progress()
        return stop is not Stop.QUIET or any(node.waiting for node in self.nodes)

    def run_cycles(self, count: int) -> None:
        """Go on for so many cycles."""
        self.instances.run(count)

    def packets(self, node: int) -> Iterator[Packet]:
        """Packets that have reached a node since the last call: data first, then control."""
        for which in (0, 1):
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

    def write_descriptors(self) -> bool:
        """Write what fits into each ring, then move its tail; it takes 8 cycles a descriptor. False: nothing waited."""
        counts = [self._fill_ring(node) for node in self.nodes]
        if not any(counts):
            return False
        self.instances.run(_WORDS_OF_A_DESCRIPTOR * max(counts) + 1)
        for node in self.nodes:
            assert self.instances.pending(node.ring) == 0
            self.instances.poke(node.core, "tail", node.tail)
        return True

    def _fill_ring(self, node: _Node) -> int:
        taken = (node.tail - self.instances.peek(node.core, "head")) % RING
        count = min(len(node.waiting), NUM_DESCRIPTORS - taken)
        for _ in range(count):
            base = node.tail % NUM_DESCRIPTORS * _WORDS_OF_A_DESCRIPTOR
            words = words_of(node.waiting.popleft())
            self.instances.push(node.ring, _words(((base + i) | word << 9 for i, word in enumerate(words)), 2))
            node.tail = (node.tail + 1) % RING
        return count

    # --- what happened ---

    def take_waveform(self) -> bytes:
        """The value change dump of all cores since the last call, where the board records one."""
        return self.instances.take_waveform()

    def link_use(self) -> dict[tuple[int, int], LinkUse]:
        """Of each link of the mesh."""
        return self.links.use()

    def drops(self, node: int) -> dict[str, int]:
        """What a node dropped or refused, by reason."""
        word = self.instances.peek(self.nodes[node].core, "drops")
        return {name: word >> 32 * i & 0xFFFFFFFF for i, name in enumerate(DROPS)}

    def merged(self, node: int) -> int:
        """Results of a node's reduction unit."""
        return self.instances.peek(self.nodes[node].core, "merged")

    def check_drops(self) -> None:
        """Raise RunError naming the first node that dropped something."""
        for number in range(len(self.nodes)):
            lost = {name: count for name, count in self.drops(number).items() if count}
            if lost:
                said = ", ".join(f"{count} for {name}" for name, count in lost.items())
                raise RunError(f"node {number} dropped packets ({said}): expected none on links without faults")

    # --- building ---

    def _node(self, core: int) -> _Node:
        source, sink = self.instances.source, self.instances.sink
        return _Node(
            core=core,
            ring=source((core, "ring")),
            routes=source((core, "routes")),
            slots=source((core, "slots")),
            ops=source((core, "kv_ops")),
            producer=self.instances.producer(core, requests="fetch", payload="payload"),
            results=sink((core, "kv_results")),
            sinks=(sink((core, "kv"), last_bit=LAST_BIT), sink((core, "control"), last_bit=LAST_BIT)),
        )


def _words(values: Iterable[int], num_words: int) -> NDArray[np.uint32]:
    joined = b"".join(value.to_bytes(4 * num_words, "little") for value in values)
    return np.frombuffer(joined, "<u4").reshape(-1, num_words)


def _used(core: Core) -> Core:
    """Amaranth warns of modules that are never elaborated: these may be compiled already."""
    for part in vars(core).values():
        if isinstance(part, Elaboratable):
            part._MustUse__used = True
    return core
