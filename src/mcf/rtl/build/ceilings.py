"""The most that each module may take, for the pinned tools: a change that needs more raises its ceiling and says why."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib import resources

from mcf.rtl.build.synth import Counts
from mcf.rtl.modules import NETWORK, NODE

FIELDS = ("lut", "ff", "dsp", "bram36", "uram", "levels")
# From the design notes. Of a whole node: half of the LUTs and flip-flops of the paper's; of its network half.
BUDGET: Mapping[str, float] = {"lut": 41_000, "ff": 44_000, "dsp": 110, "bram36": 90, "uram": 20, "levels": 8}
NETWORK_BUDGET: Mapping[str, float] = {"lut": 16_000, "ff": 18_000, "dsp": 0, "bram36": 45, "uram": 0, "levels": 8}
BUDGETS: Mapping[str, Mapping[str, float]] = {NETWORK: NETWORK_BUDGET, NODE: BUDGET}


def ceilings() -> dict[str, dict[str, float]]:
    """Return the stored ceilings: module -> field -> number."""
    text = resources.files("mcf.rtl.build").joinpath("ceilings.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, float]] = json.loads(text)
    return found


def above(name: str, counts: Counts, levels: int) -> list[str]:
    """Return what a module takes above its ceiling, one line each; a module without one is above it."""
    found = {**asdict(counts), "levels": levels}
    allowed = ceilings().get(name)
    if allowed is None:
        return [f"{name} has no ceiling: expected one in ceilings.json; it takes {json.dumps(found)}"]
    return [
        f"{name} takes {found[field]} {field}: expected at most {allowed[field]} (ceilings.json)"
        for field in FIELDS
        if found[field] > allowed[field]
    ]
