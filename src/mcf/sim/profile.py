"""Hardware as numbers, each with its source beside it. Presets are TOML files in `profiles/`."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from mcf.errors import UnknownNameError, UserError

# TOML key -> (smallest value, whether that value itself is allowed); each is a table of `value` and `source`
NUMBERS: dict[str, bool] = {
    "flops_s": False,
    "memory_bytes_s": False,
    "memory_bytes": False,
    "link_bytes_s": False,
    "link_latency_s": True,
    "step_overhead_s": True,
    "weight_bytes": False,
}
_KEYS = ("name", "physical", "note", *NUMBERS)
_PRESETS = resources.files("mcf.sim") / "profiles"


def _zero_or_more(name: str) -> bool:
    return NUMBERS[name]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind of node and of link.

    `flops_s` floating-point (or integer) operations per second of a node, a multiply-add is two; `memory_bytes_s` and
    `memory_bytes` its memory's speed and size; `link_bytes_s` bytes per second of one directed link (on a switch: of a
    node's port, each way); `link_latency_s` seconds per hop; `step_overhead_s` seconds that every compute row costs on
    top; `weight_bytes` bytes per weight. `physical` says whether such hardware can exist. `sources` says of each number
    where it is from. Raises UserError for numbers that cannot be.
    """

    name: str
    physical: bool
    flops_s: float
    memory_bytes_s: float
    memory_bytes: float
    link_bytes_s: float
    link_latency_s: float
    step_overhead_s: float
    weight_bytes: float
    note: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, or not above zero where they must be."""
        for name in NUMBERS:
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0 or (value == 0 and not _zero_or_more(name)):
                least = "at least 0" if _zero_or_more(name) else "more than 0"
                raise UserError(f"got {name} = {value!r} in profile {self.name!r}: expected a number of {least}")


def _names() -> tuple[str, ...]:
    return tuple(sorted(p.name.removesuffix(".toml") for p in _PRESETS.iterdir() if p.name.endswith(".toml")))


NAMES = _names()


def load_profile(name: str | PathLike[str]) -> Profile:
    """Read a preset by its name, or a TOML file by its path (anything that ends in `.toml`).

    Raises UnknownNameError for an unknown preset, and UserError with file, key and nearest key for anything that a
    profile does not have.
    """
    text = str(name)
    if text.endswith(".toml"):
        return parse_profile(_read(Path(text)), text)
    if text not in NAMES:
        raise UnknownNameError("profile", text, NAMES)
    return parse_profile((_PRESETS / f"{text}.toml").read_text(encoding="utf-8"), f"{text}.toml")


def parse_profile(text: str, file: str) -> Profile:
    """Read a profile from TOML text; `file` names it in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"cannot read {file} as TOML ({error}): correct that line") from None
    _check_keys(data, _KEYS, file, "")
    numbers = {key: _number(data, key, file) for key in NUMBERS}
    return Profile(
        name=_typed(data, "name", str, file),
        physical=_typed(data, "physical", bool, file),
        note=_typed(data, "note", str, file) if "note" in data else "",
        sources={key: source for key, (_, source) in numbers.items()},
        **{key: value for key, (value, _) in numbers.items()},
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"cannot read the profile {str(path)!r} ({why}): expected a TOML file") from None


def _check_keys(table: Mapping[str, Any], known: tuple[str, ...], file: str, where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
            raise UserError(f"unknown key {where + key!r} in {file}: did you mean {where + near[0]!r}? known are "
                            f"{', '.join(known)}")  # fmt: skip


def _typed(table: Mapping[str, Any], key: str, kind: type, file: str, where: str = "") -> Any:
    if key not in table:
        raise UserError(f"missing key {where + key!r} in {file}: expected a {kind.__name__}; add it")
    value = table[key]
    if not isinstance(value, kind):
        raise UserError(f"got {where + key} = {value!r} in {file}: expected a {kind.__name__}")
    return value


def _number(data: Mapping[str, Any], key: str, file: str) -> tuple[float, str]:
    table = _typed(data, key, dict, file)
    _check_keys(table, ("value", "source"), file, f"{key}.")
    if "value" not in table:
        raise UserError(f"missing key '{key}.value' in {file}: expected a number; add it")
    value = table["value"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"got {key}.value = {value!r} in {file}: expected a number")
    return value, _typed(table, "source", str, file, f"{key}.")
