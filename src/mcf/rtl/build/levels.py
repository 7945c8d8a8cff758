"""Logic levels: the most cells in a row between two registers, read from a netlist.

A LUT and a read of LUTRAM count 1; a carry chain counts 1, however long; wide multiplexers (MUXF) stand inside the
slice and count 0. Paths start and end at flip-flops, block RAMs, DSPs and the module's ports. No delays: without
placement there are none to be had.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mcf.errors import RunError
from mcf.rtl.build.synth import DSPS, FLIP_FLOPS, HALF_BRAM36, LUTS, URAMS

_REGISTERS = FLIP_FLOPS | set(HALF_BRAM36) | DSPS | URAMS
_CARRIES = frozenset({"CARRY4", "CARRY8"})
Bit = int | str  # yosys: a net's number, or a constant "0", "1", "x"


@dataclass(frozen=True, kw_only=True)
class Path:
    """The deepest path: its levels, and its cells from the first one behind a register on."""

    levels: int
    cells: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Driver:
    """What drives a net: a cell, and the nets that this output depends on."""

    name: str
    kind: str
    inputs: tuple[Bit, ...]


def deepest(flat: Mapping[str, Any]) -> Path:
    """Return the deepest path of a flat netlist. Raises RunError where logic drives itself without a register."""
    drivers = {bit: driver for driver, bit in _drivers(flat["cells"])}
    depth: dict[Bit, int] = {}
    before: dict[Bit, Bit | None] = {}
    for end in _ends(flat):
        _settle(end, drivers, depth, before)
    worst = max(depth, key=lambda bit: depth[bit], default=None)
    cells: list[str] = []
    bit = worst
    while bit is not None and bit in drivers:
        cells.append(f"{drivers[bit].name} ({drivers[bit].kind})")
        bit = before[bit]
    return Path(levels=0 if worst is None else depth[worst], cells=tuple(reversed(cells)))


def _drivers(cells: Mapping[str, Any]) -> Iterator[tuple[_Driver, Bit]]:
    """Each net that logic drives; nets from registers are left out: paths start there."""
    for name, cell in cells.items():
        kind, ports = cell["type"], cell["connections"]
        if kind in _REGISTERS:
            continue
        for port, direction in cell["port_directions"].items():
            if direction == "output":
                for index, bit in enumerate(ports[port]):
                    yield _Driver(name=name, kind=kind, inputs=tuple(_inputs(cell, port, index))), bit


def _inputs(cell: Mapping[str, Any], output: str, index: int) -> Iterator[Bit]:
    """The nets on which bit `index` of an output depends, in the same cycle."""
    kind, ports = cell["type"], cell["connections"]
    for port, direction in cell["port_directions"].items():
        if direction != "input":
            continue
        if kind in _CARRIES and port in ("S", "DI"):
            yield from ports[port][: index + 1]  # a chain runs upward only
        elif not kind.startswith(("RAM", "SRL")) or _is_read_address(port, output):
            yield from ports[port]


def _is_read_address(port: str, output: str) -> bool:
    """Say whether a LUTRAM's or shift register's input is the address of this output; its other inputs are clocked."""
    if output.startswith("DO") and len(output) == 3:  # DOA of the wide ones is read at ADDRA
        return port == f"ADDR{output[-1]}"
    if output == "DPO":
        return port.startswith("DPRA")
    return port == "A" or (port.startswith("A") and port[1:].isdigit())


def _ends(flat: Mapping[str, Any]) -> Iterator[Bit]:
    """Nets at which paths end: inputs of registers and clocked inputs of LUTRAM, and the module's outputs."""
    for cell in flat["cells"].values():
        if cell["type"] in _REGISTERS or cell["type"].startswith(("RAM", "SRL")):
            for port, direction in cell["port_directions"].items():
                if direction == "input":
                    yield from cell["connections"][port]
    for port in flat["ports"].values():
        if port["direction"] == "output":
            yield from port["bits"]


def _settle(end: Bit, drivers: Mapping[Bit, _Driver], depth: dict[Bit, int], before: dict[Bit, Bit | None]) -> None:
    """Fill in the depth of a net and of all before it, without recursion."""
    stack = [(end, False)]
    at_work: set[Bit] = set()
    while stack:
        bit, is_second = stack.pop()
        if bit in depth:
            continue
        driver = drivers.get(bit)
        if driver is None:
            depth[bit], before[bit] = 0, None
        elif is_second:
            depth[bit], before[bit] = _depth(driver, drivers, depth)
            at_work.discard(bit)
        elif bit in at_work:
            raise RunError(f"logic drives itself without a register, through {driver.name} ({driver.kind})")
        else:
            at_work.add(bit)
            stack.append((bit, True))
            stack += [(source, False) for source in driver.inputs if source not in depth]


def _depth(driver: _Driver, drivers: Mapping[Bit, _Driver], depth: Mapping[Bit, int]) -> tuple[int, Bit | None]:
    """Levels up to a net, and the net before it on the deepest way."""
    costs = [(depth[bit] + _cost(driver, drivers.get(bit)), str(bit), bit) for bit in driver.inputs]
    levels, _, bit = max(costs, default=(0, "", None))
    return levels, bit


def _cost(driver: _Driver, source: _Driver | None) -> int:
    if driver.kind in _CARRIES:
        return 0 if source is not None and source.kind in _CARRIES else 1
    return 1 if driver.kind in LUTS else 0
