"""The ports of a component as its compiled form has them: streams by name, and the signals that are no streams."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amaranth.hdl import Const, Value
from amaranth.lib.wiring import Component

STREAM_PARTS = ("payload", "valid", "ready")


@dataclass(frozen=True, kw_only=True)
class Port:
    """One wire: its name in the netlist, its width in bits; `is_input` as the component sees it."""

    name: str
    width: int
    is_input: bool

    @property
    def num_words(self) -> int:
        """32-bit words that hold it."""
        return -(-self.width // 32)


@dataclass(frozen=True, kw_only=True)
class StreamPort:
    """One stream; `ready` or `valid` is absent where it is always 1. `is_input`: payload goes into the component."""

    name: str
    payload: Port
    valid: Port | None
    ready: Port | None

    @property
    def is_input(self) -> bool:
        """Say whether the component takes the payload."""
        return self.payload.is_input


@dataclass(frozen=True, kw_only=True)
class Ports:
    """All ports of a component, in the order of its signature."""

    streams: tuple[StreamPort, ...]
    signals: tuple[Port, ...]

    @property
    def inputs(self) -> tuple[StreamPort, ...]:
        """Streams that the component takes."""
        return tuple(s for s in self.streams if s.is_input)

    @property
    def outputs(self) -> tuple[StreamPort, ...]:
        """Streams that the component gives."""
        return tuple(s for s in self.streams if not s.is_input)

    def places(self, *, is_input: bool) -> dict[str, tuple[int, int]]:
        """Name -> (first word, number of words) of the signals of one direction, as the mesh keeps them."""
        return self._places[is_input]

    @cached_property
    def _places(self) -> dict[bool, dict[str, tuple[int, int]]]:
        out: dict[bool, dict[str, tuple[int, int]]] = {False: {}, True: {}}
        at = {False: 0, True: 0}
        for port in self.signals:
            out[port.is_input][port.name] = (at[port.is_input], port.num_words)
            at[port.is_input] += port.num_words
        return out


def ports_of(component: Component) -> Ports:
    """Read a component's ports; those that are constants (always valid, always ready) have no wire."""
    wires: dict[str, Port | None] = {}
    for path, member, value in component.signature.flatten(component):
        name = "__".join(str(part) for part in path)
        wires[name] = None if _is_constant(value) else _port(name, member.flow.name == "In", value)
    stems = [name.removesuffix("__payload") for name in wires if name.endswith("__payload")]
    streams = tuple(s for s in (_stream(stem, wires) for stem in stems) if s is not None)
    of_streams = {f"{s.name}__{part}" for s in streams for part in STREAM_PARTS}
    signals = tuple(port for name, port in wires.items() if port is not None and name not in of_streams)
    return Ports(streams=streams, signals=signals)


def _is_constant(value: Any) -> bool:
    return isinstance(Value.cast(value), Const)


def _port(name: str, is_input: bool, value: Any) -> Port:
    return Port(name=name, width=len(Value.cast(value)), is_input=is_input)


def _stream(stem: str, wires: Mapping[str, Port | None]) -> StreamPort | None:
    names = [f"{stem}__{part}" for part in STREAM_PARTS]
    payload = wires[names[0]]
    if payload is None or not all(name in wires for name in names):
        return None
    return StreamPort(name=stem, payload=payload, valid=wires[names[1]], ready=wires[names[2]])
