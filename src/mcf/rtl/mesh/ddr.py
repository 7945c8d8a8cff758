"""The memory behind AXI ports of simulated modules: how long it takes, what it holds, what it was used for.

A model, not a DRAM: a burst that is asked for in cycle t may begin at max(t + latency, when the burst before it in its
bank began), and `row_miss` cycles later where another row of the bank is open. Each beat of 16 bytes, read or written,
takes its share of one data bus of `bytes_per_cycle`; where that is short, ports take turns. A port moves one beat per
cycle. Writes are posted: they disturb no rows, and are answered `latency` cycles after a burst's last beat. There are
16 banks of rows of 8 KB: byte a lies in bank a / 8192 % 16. Refresh and turning the bus around are not modelled.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mcf.errors import UserError
from mcf.rtl.build.ports import Ports

BUS_UNITS = 256  # per byte
ROW_BYTES = 8192  # of a bank, as in ddr.h
# Of an AXI port: what the model looks at and drives, in the order of ddr.h.
_READ = ("araddr", "arlen", "arvalid", "rready"), ("arready", "rdata", "rresp", "rlast", "rvalid")
_WRITE = ("awaddr", "awlen", "awvalid", "wdata", "wvalid", "bready"), ("awready", "wready", "bresp", "bvalid")


@dataclass(frozen=True, kw_only=True)
class DdrTiming:
    """Cycles and bytes; `stall` is the chance that a port does nothing in a cycle, whatever the reason.

    The defaults stand for DDR4-2400 of 64 bits seen at an assumed 200 MHz: 19.2 GB/s, and, assumed as well, 200 ns to
    the first beat and 30 ns for another row.
    """

    latency: int = 40
    row_miss: int = 6
    bytes_per_cycle: float = 96.0
    size_bytes: int = 1 << 32
    stall: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no memory is."""
        if min(self.latency, self.row_miss) < 0 or not self.bytes_per_cycle >= 1 or not 0 <= self.stall < 1:
            raise UserError(f"got {self}: expected cycles from 0 on, at least a byte per cycle, a stall below 1")
        if self.size_bytes <= 0 or self.size_bytes % 4096:
            raise UserError(f"got a memory of {self.size_bytes} bytes: expected a multiple of 4096")


class DdrCounts(NamedTuple):
    """Of a port: beats moved, bursts, those of another row than was open, cycles in which a beat waited for the bus."""

    beats: int
    bursts: int
    misses: int
    starved: int


class _Counts(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in DdrCounts._fields)


class Ddr:
    """One memory; made by `Mesh.ddr`. `mesh` gives the mesh for calls of the library, or raises once that is closed."""

    def __init__(self, lib: Any, mesh: Callable[[], Any], timing: DdrTiming) -> None:
        self._lib, self._mesh, self.timing = lib, mesh, timing
        rate = round(timing.bytes_per_cycle * BUS_UNITS)
        self._number = lib.mesh_ddr(mesh(), timing.latency, timing.row_miss, rate, timing.size_bytes)

    def attach(self, instance: int, ports: Ports, prefix: str, seed: int) -> int:
        """Put the AXI port of an instance whose signals are `PREFIX__araddr` or `PREFIX__awaddr` ... behind it."""
        outs, ins = ports.places(is_input=False), ports.places(is_input=True)
        is_read = f"{prefix}__araddr" in outs
        if not is_read and f"{prefix}__awaddr" not in outs:
            raise UserError(f"got {prefix!r}: expected the prefix of an AXI port of the module")
        told, driven = _READ if is_read else _WRITE
        places = [outs[f"{prefix}__{name}"][0] for name in told] + [ins[f"{prefix}__{name}"][0] for name in driven]
        array = (ctypes.c_int32 * len(places))(*places)
        chance = round(self.timing.stall * 256)
        return int(self._lib.mesh_ddr_port(self._mesh(), self._number, instance, int(is_read), array, chance, seed))

    def write(self, address: int, values: bytes | bytearray | memoryview) -> None:
        """Store bytes, without time."""
        self._within(address, len(values))
        self._lib.mesh_ddr_write(self._mesh(), self._number, address, bytes(values), len(values))

    def read(self, address: int, size_bytes: int) -> bytes:
        """Return bytes as they are now; what was never written is zero."""
        self._within(address, size_bytes)
        room = ctypes.create_string_buffer(size_bytes)
        self._lib.mesh_ddr_read(self._mesh(), self._number, address, room, size_bytes)
        return room.raw

    def counts(self, port: int) -> DdrCounts:
        """What a port did so far; ports count from 0 in the order of `Mesh.ddr`."""
        out = _Counts()
        self._lib.mesh_ddr_counts(self._mesh(), self._number, port, ctypes.byref(out))
        return DdrCounts(*(int(getattr(out, name)) for name in DdrCounts._fields))

    def _within(self, address: int, size_bytes: int) -> None:
        if not 0 <= address <= address + size_bytes <= self.timing.size_bytes:
            end = address + size_bytes
            raise UserError(
                f"got bytes {address:#x} to {end:#x}: expected at most {self.timing.size_bytes:#x} of memory"
            )


AxiPort = tuple[int, str]  # an instance and a prefix
AxiPorts = Sequence[AxiPort]
