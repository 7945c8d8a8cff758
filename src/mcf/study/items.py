"""What a study says of the paper: values beside published ones, claims checked, each with a flag and its arithmetic."""

from dataclasses import dataclass
from typing import Any

REPRODUCED = "reproduced"
FITTED = "fitted"
NOT_EXPLAINED = "not explained"
IMPOSSIBLE = "physically impossible"
FLAGS = {
    REPRODUCED: "ours follows from the paper's description, and agrees",
    FITTED: "ours agrees as well as the residual says, with numbers that were fitted to the published ones",
    NOT_EXPLAINED: "ours does not agree, and nothing in the paper's equations explains why",
    IMPOSSIBLE: "the described hardware cannot do what is published",
}


@dataclass(frozen=True, kw_only=True)
class Item:
    """One value or one claim of the paper. `ours` and `published` in `unit`; a claim may have neither.

    `arithmetic` is one line that a reader can check by hand.
    """

    study: str
    name: str
    flag: str
    arithmetic: str
    ours: float | None = None
    published: float | None = None
    unit: str = ""

    def __post_init__(self) -> None:
        """Flags are four."""
        assert self.flag in FLAGS, self.flag

    @property
    def residual(self) -> float | None:
        """How far ours is from the published value, as a part of it."""
        if self.ours is None or not self.published:
            return None
        return self.ours / self.published - 1

    def to_json(self) -> dict[str, Any]:
        """The documented object (docs/json.md)."""
        return {**vars(self), "residual": self.residual}


def claim(study: str, name: str, holds: bool, arithmetic: str, *, by_fit: bool = False) -> Item:
    """A claim that is checked: if it holds, reproduced, or fitted where its numbers are a fit's; else not explained."""
    flag = (FITTED if by_fit else REPRODUCED) if holds else NOT_EXPLAINED
    return Item(study=study, name=name, flag=flag, arithmetic=arithmetic)
