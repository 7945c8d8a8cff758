"""What a mesh can be made to suffer, and how its links are made: what a caller says, without any hardware."""

from enum import IntEnum, StrEnum
from typing import NamedTuple


class LinkKind(StrEnum):
    """`plain`: beats cross as they are. `credit`: in words of `hdl.credit_link`, sent again until they arrive whole."""

    PLAIN = "plain"
    CREDIT = "credit"


class FaultKind(IntEnum):
    """What can go wrong on a link: a bit flips, a word is lost or doubled, all words of some cycles are lost."""

    FLIP = 0
    DROP = 1
    DOUBLE = 2
    SILENCE = 3


class LinkFault(NamedTuple):
    """Something that goes wrong on the way from node a to node b: see `FaultKind` for `at` and `arg`."""

    a: int
    b: int
    kind: FaultKind
    at: int
    arg: int = 0


class Refusal(NamedTuple):
    """A node whose compute half takes nothing of what arrives, for `cycles` cycles from cycle `at` on."""

    node: int
    at: int
    cycles: int
