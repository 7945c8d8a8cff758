"""Two saved measurements side by side: the ratio of their medians, or why they cannot be compared."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from mcf.bench.run import FORMAT
from mcf.bench.spread import ratio
from mcf.errors import UserError

MACHINE, VERSIONS = "machine", "versions"


def read_measurement(text: str, name: str) -> dict[str, Any]:
    """Return what `mcf bench --save` wrote. Raises UserError for anything else."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UserError(f"{name!r} is no measurement: expected a file that `mcf bench prefill|decode --save` wrote")
    return found


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What the two do not share of settings, machine and versions: name -> both values."""
    both = {name: (a["settings"].get(name), b["settings"].get(name)) for name in {**a["settings"], **b["settings"]}}
    for name in (MACHINE, VERSIONS):
        both[name] = (a["environment"][name], b["environment"][name])
    return {name: pair for name, pair in both.items() if pair[0] != pair[1] and name not in ("rounds", "warmup")}


def compare(a: Mapping[str, Any], b: Mapping[str, Any], *, across: Collection[str] = ()) -> dict[str, Any]:
    """Return the ratio A / B of the median seconds with its range, and what differs.

    Raises UserError where anything differs that `across` does not name: such a ratio would say something else than it
    seems to.
    """
    found = differences(a, b)
    unknown = sorted(set(across) - {*a["settings"], MACHINE, VERSIONS})
    if unknown:
        raise UserError(f"got --across {unknown[0]}: expected one of {', '.join([*a['settings'], MACHINE, VERSIONS])}")
    unnamed = sorted(set(found) - set(across))
    if unnamed:
        name = unnamed[0]
        raise UserError(
            f"the measurements differ in {', '.join(unnamed)} ({name}: {found[name][0]} and {found[name][1]}): "
            f"expected the same; if the difference is what you compare, say --across {','.join(unnamed)}"
        )
    return {
        "ratio": ratio(a["seconds"], b["seconds"]),
        "seconds": [a["seconds"]["median"], b["seconds"]["median"]],
        "achieved_of_bound": [a["achieved_of_bound"], b["achieved_of_bound"]],
        "differences": {name: list(pair) for name, pair in found.items()},
    }
