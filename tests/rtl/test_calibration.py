"""Model time on `kr260-rtl` against the cycles of the simulated hardware: `benchmarks/rtl/calibrate.py`."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.errors import ScheduleError
from mcf.rtl.build.cxxrtl import missing_compiler
from mcf.rtl.headers import descriptors, header_of
from mcf.rtl.lower import lower
from mcf.schedule.steps import PREFILL
from mcf.sim import load_profile
from mcf.sim.packets import num_descriptors

pytestmark = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))

# why: docs/simulator.md, "On the hardware's cycles"
OUTSIDE = ("gather on switch", "mars on mesh:2x2", "mars-paper on switch")
QUICK = ("one-shot on mesh:2x2", "ring on mesh:4x1", "random 2")


def load(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark, as a module."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks" / "rtl"))
    return importlib.import_module("calibrate")


def rows_of(module: ModuleType, names: tuple[str, ...] | None) -> list[dict]:
    cases = [case for case in module.cases() if names is None or case.name in names]
    rows = [next(module.measured(case)) for case in cases]
    return module.compared(rows, module.infinitely_fast(load_profile(module.PROFILE)))


def test_some_schedules_are_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    rows = rows_of(module, QUICK)
    assert len(rows) == len(QUICK)
    assert module.worst(rows) <= module.BAND


def test_descriptors_are_as_many_as_the_executor_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    for case in load(monkeypatch).cases():
        try:
            low = lower(case.schedule, case.mesh)
        except ScheduleError:
            continue  # routes in a circle
        for row, messages in low.messages.items():
            if case.schedule.steps["stage"][row] == PREFILL:
                to = case.schedule.receivers(row)
                headers = [header_of(low, row, message, layer=0, to=to) for message in messages]
                written = list(descriptors(headers, [message.num_beats for message in messages], 0))
                assert num_descriptors(case.schedule, row) == len(written), (case.name, row)
                compared += 1
    assert compared > 500


@pytest.mark.full
def test_all_schedules_but_the_named_ones_are_within_the_band(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load(monkeypatch)
    rows = rows_of(module, None)
    assert len([row for row in rows if "ratio" in row]) >= 22
    assert set(module.outside(rows)) <= set(OUTSIDE)
