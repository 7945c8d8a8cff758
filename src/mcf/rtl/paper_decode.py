"""The run of simulated hardware on whose cycles the report's tokens per second stand; `scripts/make-decode` writes it
down: the paper's model on four nodes at 16K tokens, one or more of its layers on whole nodes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from mcf.model.named import named_shape
from mcf.rtl.rates import LAYOUTS, Case, Measured, Rate, rate


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What was run (`num_layers` layers of `model`), and the cycles that it measured."""

    model: str
    num_nodes: int
    context: int
    num_layers: int
    measured: Measured

    def rates(self) -> list[Rate]:
        """A whole token from these cycles, for each layout of the weights."""
        cases = [
            Case(shape=named_shape(self.model), num_nodes=self.num_nodes, context=self.context, layout=layout)
            for layout in LAYOUTS
        ]
        return [rate(case, self.measured) for case in cases]

    def says(self) -> str:
        """What of these rates comes from simulated cycles, and what is arithmetic."""
        found, shape = self.measured, named_shape(self.model)
        return (
            f"Measured in simulation of the hardware ({self.num_layers} of {shape.num_layers} layers, random numbers): "
            f"{found.beats_per_cycle:.3f} wide beats a cycle in a product, {found.attention_cycles:,.0f} cycles for a "
            f"layer's attention, {found.merge_cycles:,.0f} for its merge. Arithmetic: all matrices at that rate, all "
            "layers alike, the exchange of rows where weights are split. What the processor "
            "writes and reads over AXI4-Lite is counted in its own part."
        )

    def numbers(self) -> dict[str, Any]:
        """The documented object."""
        return {
            "model": self.model,
            "nodes": self.num_nodes,
            "context": self.context,
            "layers": self.num_layers,
            "beats_per_cycle": self.measured.beats_per_cycle,
            "attention_cycles": self.measured.attention_cycles,
            "merge_cycles": self.measured.merge_cycles,
        }


def read_calibration(numbers: Mapping[str, Any]) -> Calibration:
    """The opposite of `Calibration.numbers`."""
    measured = {name: numbers[name] for name in ("beats_per_cycle", "attention_cycles", "merge_cycles")}
    return Calibration(
        model=numbers["model"],
        num_nodes=numbers["nodes"],
        context=numbers["context"],
        num_layers=numbers["layers"],
        measured=Measured(**measured),
    )


def stored() -> Calibration:
    """The run that is written down."""
    text = resources.files("mcf.rtl.build").joinpath("decode.json").read_text(encoding="utf-8")
    return read_calibration(json.loads(text))
