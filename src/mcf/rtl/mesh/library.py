"""The mesh's C++ as Python sees it: one object, called by names."""

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from mcf.errors import RunError, UserError
from mcf.rtl.build.cxxrtl import Library, compile_mesh
from mcf.rtl.build.ports import Ports
from mcf.rtl.faults import FaultKind
from mcf.rtl.mesh.ddr import AxiPorts, Ddr, DdrTiming

Array = NDArray[Any]
STREAM_WORDS = 12
RECORD = np.dtype([("first", "<u8"), ("last", "<u8"), ("header", "<u4", 4), ("link", "<u4"), ("num_beats", "<u4")])
MANY_CYCLES = 1 << 62
_ROOM = 4096
_AXI_IN = ("awaddr", "awvalid", "wdata", "wstrb", "wvalid", "bready", "araddr", "arvalid", "rready")
_AXI_OUT = ("awready", "wready", "bresp", "bvalid", "arready", "rdata", "rresp", "rvalid")
_WAVEFORM_BYTES = 1 << 20
_CHANCES = 256
_NOISES = 1 << 24
_FIRST_SEED = 0x9E3779B97F4A7C15


class Stop(IntEnum):
    """Why a run ended: all cycles done, nothing can move any more, a sink took something, or software has work."""

    LIMIT = 0
    QUIET = 1
    WOKEN = 2
    ANSWERED = 3


class LinkCounts(NamedTuple):
    """Words that crossed a link; cycles in which one waited to; words that faults lost, damaged and doubled."""

    moved: int
    stalled: int
    lost: int
    flipped: int
    doubled: int


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in LinkCounts._fields)


class Mesh:
    """Instances, links, sources and sinks. All numbers that its methods return name things for later calls."""

    def __init__(self) -> None:
        self._lib = _load(str(compile_mesh()))
        self._handle: Any = self._lib.mesh_new()
        self._classes: dict[Path, Any] = {}
        self._ports: list[Ports] = []
        self._seed = _FIRST_SEED

    def __enter__(self) -> Self:
        """Return the mesh itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Give everything back."""
        self.close()

    def close(self) -> None:
        """Give everything back; whatever is called afterwards raises RunError. Harmless when called again."""
        if self._handle is not None:
            self._lib.mesh_free(self._handle)
            self._handle = None

    @property
    def handle(self) -> Any:
        """The mesh itself, for calls of the library. Raises RunError once it is closed."""
        if self._handle is None:
            raise RunError("this mesh is closed: expected no calls after close; make a new one")
        return self._handle

    # --- building ---

    def instance(self, library: Library) -> int:
        """Make one more instance of a compiled module; its number."""
        if library.path not in self._classes:
            loaded = ctypes.CDLL(str(library.path))
            loaded.mcf_class.restype = ctypes.c_void_p
            self._classes[library.path] = loaded.mcf_class()
        self._ports.append(library.ports)
        return int(self._lib.mesh_instance(self.handle, self._classes[library.path]))

    def link(
        self, source: tuple[int, str], target: tuple[int, str], *, latency: int = 0, depth: int = 0, last_bit: int = -1
    ) -> int:
        """Wire an instance's output stream to another's input stream; the link's number.

        `depth` 0 is a plain wire; else a word arrives `latency` cycles after it left (at least 1), and at most `depth`
        are under way. `last_bit` of the payload ends a packet; -1: packets are not recorded.
        """
        if (depth == 0) != (latency == 0):
            raise UserError(f"got a link of latency {latency} and depth {depth}: expected both 0 or both at least 1")
        a, b = self._output(*source), self._input(*target)
        return int(self._lib.mesh_link(self.handle, source[0], a, target[0], b, latency, depth, last_bit))

    def source(self, target: tuple[int, str], *, gap: float = 0.0) -> int:
        """Feed an input stream from a queue that offers nothing with chance `gap` in a cycle; the source's number."""
        at = target[0], self._input(*target)
        return int(self._lib.mesh_source(self.handle, *at, _chance(gap), self._next_seed()))

    def sink(self, source: tuple[int, str], *, stall: float = 0.0, last_bit: int = -1) -> int:
        """Take what an output stream gives; `stall` is the chance that it does not in a cycle. The sink's number.

        A run that waits to be woken ends when this sink takes something; with `last_bit` only what has that bit set.
        """
        at = source[0], self._output(*source)
        return int(self._lib.mesh_sink(self.handle, *at, _chance(stall), self._next_seed(), last_bit))

    def producer(self, node: int, *, requests: str, payload: str) -> int:
        """Answer requests {address, beats} on one stream of a node with beats of memory on another; its number."""
        at = self._output(node, requests), self._input(node, payload)
        return int(self._lib.mesh_producer(self.handle, node, *at))

    def ddr(self, ports: AxiPorts, timing: DdrTiming | None = None) -> Ddr:
        """Put AXI ports, each an (instance, prefix of its signals), behind one memory, which is returned."""
        out = Ddr(self._lib, lambda: self.handle, timing or DdrTiming())
        for instance, prefix in ports:
            out.attach(instance, self._ports[instance], prefix, self._next_seed())
        return out

    def stall_link(self, link: int, chance: float) -> None:
        """Let a link (not a plain wire) refuse words at random."""
        self._lib.mesh_stall_link(self.handle, link, _chance(chance), self._next_seed())

    def fault(self, link: int, kind: FaultKind, at: int, arg: int = 0) -> None:
        """Break something on a link (not a plain wire): on its word number `at`, or from cycle `at` (SILENCE)."""
        self._lib.mesh_fault(self.handle, link, kind, at, arg)

    def axi(self, instance: int) -> int:
        """Be the AXI4-Lite master of an instance with ports `axi` and `interrupt`; the master's number."""
        names = [f"axi__{name}" for name in _AXI_IN]
        places = [self._ports[instance].places(is_input=True)[name][0] for name in names]
        names = [*(f"axi__{name}" for name in _AXI_OUT), "interrupt"]
        places += [self._ports[instance].places(is_input=False)[name][0] for name in names]
        return int(self._lib.mesh_axi(self.handle, instance, (ctypes.c_int32 * len(places))(*places)))

    def noise(self, link: int, share: float, *, num_bits: int) -> None:
        """Break a share of a link's words at random, each in one way: a bit below `num_bits` flips, lost, doubled."""
        self._lib.mesh_noise(self.handle, link, round(share * _NOISES), self._next_seed(), num_bits)

    def hold(self, sink: int, start: int, count: int) -> None:
        """Let a sink take nothing for `count` cycles from cycle `start` on."""
        self._lib.mesh_hold_sink(self.handle, sink, start, count)

    def lead_pulses(self, source: tuple[int, str], target: tuple[int, str], bit: int) -> int:
        """Lead an instance's output signal of one bit to a bit of another's input signal of at most 32.

        The cycles in which it is high are counted from now on; the counter's number.
        """
        at, _ = self._ports[source[0]].places(is_input=False)[source[1]]
        to_at, _ = self._ports[target[0]].places(is_input=True)[target[1]]
        return int(self._lib.mesh_lead_pulses(self.handle, source[0], at, target[0], to_at, bit))

    def pulses(self, counter: int) -> int:
        """How far a counter of pulses is."""
        return int(self._lib.mesh_pulses(self.handle, counter))

    # --- running ---

    def run(self, limit: int = MANY_CYCLES, *, wake: bool = False) -> Stop:
        """Run for `limit` cycles, or until nothing can move.

        With `wake` also until a sink takes something, an AXI read is answered or a node interrupts.
        """
        return Stop(self._lib.mesh_run(self.handle, limit, int(wake)))

    @property
    def cycle(self) -> int:
        """Cycles so far."""
        return int(self._lib.mesh_cycle(self.handle))

    def push(self, source: int, words: Array) -> None:
        """Queue payloads [n, words of 32 bits] at a source."""
        values = np.ascontiguousarray(words, dtype=np.uint32)
        assert values.ndim == 2, values.shape
        assert values.shape[1] <= STREAM_WORDS, values.shape
        self._lib.mesh_push(self.handle, source, values.ctypes.data, len(values), values.shape[1])

    def pending(self, source: int) -> int:
        """Payloads that still wait at a source."""
        return int(self._lib.mesh_pending(self.handle, source))

    def held(self, sink: int) -> int:
        """How many payloads a sink has taken since the last `take`."""
        return int(self._lib.mesh_held(self.handle, sink))

    def take(self, sink: int, num_words: int) -> tuple[Array, Array]:
        """Return what a sink took since the last call: cycles [n], payloads [n, num_words]."""
        count = self.held(sink)
        cycles, words = np.empty(count, np.uint64), np.empty((count, num_words), np.uint32)
        self._lib.mesh_take(self.handle, sink, cycles.ctypes.data, words.ctypes.data, num_words, count)
        return cycles, words

    def write_memory(self, producer: int, address: int, values: bytes) -> None:
        """Write a producer's memory; it grows as needed."""
        self._lib.mesh_memory(self.handle, producer, address, values, len(values))

    def put_accesses(self, axi: int, accesses: Sequence[tuple[int, int, int]]) -> None:
        """Queue accesses (is_write, address, word) of an AXI master; it makes one at a time."""
        values = np.array(accesses, dtype=np.uint32)
        self._lib.mesh_axi_put(self.handle, axi, values.ctypes.data, len(values))

    def take_answers(self, axi: int) -> list[int]:
        """Return the words of the reads that were answered since the last call. Raises RunError for a refusal."""
        if self._lib.mesh_axi_refused(self.handle, axi):
            raise RunError("a node refused an access over AXI4-Lite: expected registers of its map alone")
        words = np.empty(_ROOM, np.uint32)
        count = int(self._lib.mesh_axi_answers(self.handle, axi, words.ctypes.data, _ROOM))
        found: list[int] = words[:count].tolist()
        return found

    def pending_accesses(self, axi: int) -> int:
        """Accesses that are not done yet."""
        return int(self._lib.mesh_axi_pending(self.handle, axi))

    def peek(self, instance: int, name: str) -> int:
        """Read an output signal that is no stream, as it is after the last cycle."""
        at, num_words = self._ports[instance].places(is_input=False)[name]
        words = np.empty(num_words, np.uint32)
        self._lib.mesh_peek(self.handle, instance, at, words.ctypes.data, num_words)
        return int.from_bytes(words.tobytes(), "little")

    def counts(self, link: int) -> LinkCounts:
        """What crossed a link so far."""
        out = _Counts()
        self._lib.mesh_counts(self.handle, link, ctypes.byref(out))
        return LinkCounts(*(getattr(out, name) for name in LinkCounts._fields))

    def records(self) -> Array:
        """Return the packets that crossed recorded links since the last call, as RECORD."""
        parts = []
        while True:
            part = np.empty(_ROOM, RECORD)
            count = int(self._lib.mesh_records(self.handle, part.ctypes.data, _ROOM))
            parts.append(part[:count])
            if count < _ROOM:
                return np.concatenate(parts)

    # --- waveforms ---

    def open_waveform(self, instances: Sequence[int], names: Sequence[str]) -> None:
        """Sample all wires of instances of one module from now on; it must be compiled with `waveform`."""
        numbers = (ctypes.c_int * len(instances))(*instances)
        texts = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        assert self._lib.mesh_open_waveform(self.handle, numbers, texts, len(instances)), "compiled without waveform"

    def take_waveform(self) -> bytes:
        """Return what the waveform has grown by: text of a value change dump."""
        parts = []
        while True:
            room = ctypes.create_string_buffer(_WAVEFORM_BYTES)
            count = int(self._lib.mesh_take_waveform(self.handle, room, _WAVEFORM_BYTES))
            parts.append(room.raw[:count])
            if count < _WAVEFORM_BYTES:
                return b"".join(parts)

    def _input(self, instance: int, name: str) -> int:
        return [s.name for s in self._ports[instance].inputs].index(name)

    def _output(self, instance: int, name: str) -> int:
        return [s.name for s in self._ports[instance].outputs].index(name)

    def _next_seed(self) -> int:
        self._seed = (self._seed * 6364136223846793005 + 1442695040888963407) % 2**64 | 1
        return self._seed


def _chance(share: float) -> int:
    return round(share * _CHANCES)


_I, _U, _L, _P = ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p
_CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mesh_new": (_P, ()),
    "mesh_free": (None, (_P,)),
    "mesh_instance": (_I, (_P, _P)),
    "mesh_link": (_I, (_P, _I, _I, _I, _I, _U, _U, _I)),
    "mesh_stall_link": (None, (_P, _I, _U, _L)),
    "mesh_fault": (None, (_P, _I, _U, _L, _U)),
    "mesh_noise": (None, (_P, _I, _U, _L, _U)),
    "mesh_source": (_I, (_P, _I, _I, _U, _L)),
    "mesh_push": (None, (_P, _I, _P, ctypes.c_int64, _I)),
    "mesh_pending": (ctypes.c_int64, (_P, _I)),
    "mesh_sink": (_I, (_P, _I, _I, _U, _L, _I)),
    "mesh_hold_sink": (None, (_P, _I, _L, _L)),
    "mesh_held": (ctypes.c_int64, (_P, _I)),
    "mesh_take": (ctypes.c_int64, (_P, _I, _P, _P, _I, ctypes.c_int64)),
    "mesh_producer": (_I, (_P, _I, _I, _I)),
    "mesh_memory": (None, (_P, _I, _L, ctypes.c_char_p, _L)),
    "mesh_axi": (_I, (_P, _I, _P)),
    "mesh_axi_put": (None, (_P, _I, _P, ctypes.c_int64)),
    "mesh_axi_answers": (ctypes.c_int64, (_P, _I, _P, ctypes.c_int64)),
    "mesh_axi_pending": (ctypes.c_int64, (_P, _I)),
    "mesh_axi_refused": (_U, (_P, _I)),
    "mesh_ddr": (_I, (_P, _U, _U, _L, _L)),
    "mesh_ddr_port": (_I, (_P, _I, _I, _I, _P, _U, _L)),
    "mesh_ddr_write": (None, (_P, _I, _L, ctypes.c_char_p, _L)),
    "mesh_ddr_read": (None, (_P, _I, _L, _P, _L)),
    "mesh_ddr_counts": (None, (_P, _I, _I, _P)),
    "mesh_peek": (None, (_P, _I, _I, _P, _I)),
    "mesh_counts": (None, (_P, _I, _P)),
    "mesh_lead_pulses": (_I, (_P, _I, _I, _I, _I, _I)),
    "mesh_pulses": (_L, (_P, _I)),
    "mesh_records": (ctypes.c_int64, (_P, _P, ctypes.c_int64)),
    "mesh_cycle": (_L, (_P,)),
    "mesh_run": (_I, (_P, _L, _I)),
    "mesh_open_waveform": (_I, (_P, _P, _P, _I)),
    "mesh_take_waveform": (ctypes.c_int64, (_P, _P, ctypes.c_int64)),
}


def _load(path: str) -> Any:
    lib = ctypes.CDLL(path)
    for name, (result, arguments) in _CALLS.items():
        call = getattr(lib, name)
        call.restype, call.argtypes = result, arguments
    return lib
