"""A router's ports, and an entry of its route table: 16 bits that say where the packets of one route go."""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum

from mcf.errors import ScheduleError


class Port(IntEnum):
    """A router's ports: four neighbours and the node itself."""

    NORTH = 0
    EAST = 1
    SOUTH = 2
    WEST = 3
    LOCAL = 4

    @property
    def opposite(self) -> "Port":
        """The neighbour's port at the other end of the link."""
        return Port.LOCAL if self == Port.LOCAL else Port((self + 2) % 4)


NUM_PORTS = len(Port)
NUM_ROUTES = 1024  # what the header's route_id can name

ENTRY_BITS = {"out_mask": 5, "in_port": 3, "parent": 3, "children": 4, "valid": 1}  # from the least significant on


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What one node does with the packets of one route.

    A packet that comes in by `in_port` goes out by all of `outs`; one that comes from a port of `children` goes to the
    node itself, to be reduced; any other is dropped. `parent` is where a reduction's result goes.
    """

    in_port: Port
    outs: frozenset[Port]
    children: frozenset[Port] = frozenset()
    parent: Port = Port.LOCAL

    def __post_init__(self) -> None:
        """A packet does not go back where it came from, and the node is no child of itself."""
        if self.in_port in self.outs - {Port.LOCAL}:
            raise ScheduleError(f"got a route in and out by {self.in_port.name}: expected a route without U-turns")
        if Port.LOCAL in self.children:
            raise ScheduleError("got the node itself among a reduction's children: expected neighbours only")

    def pack(self) -> int:
        """The 16 bits."""
        values = {
            "out_mask": mask(self.outs),
            "in_port": int(self.in_port),
            "parent": int(self.parent),
            "children": mask(self.children),
            "valid": 1,
        }
        word = low = 0
        for name, width in ENTRY_BITS.items():
            word |= values[name] << low
            low += width
        return word


def mask(ports: Collection[Port]) -> int:
    """One bit for each port."""
    return sum(1 << port for port in set(ports))


def unpack(word: int) -> dict[str, int]:
    """The fields of a table word, valid or not."""
    out, low = {}, 0
    for name, width in ENTRY_BITS.items():
        out[name] = word >> low & (1 << width) - 1
        low += width
    return out
