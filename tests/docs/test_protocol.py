"""docs/protocol.md is what the code says now, and each law is cited by tests."""

import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

import pytest

from mcf.dist.control import MESSAGES
from mcf.dist.examine import Examiner
from mcf.dist.session import Session
from mcf.errors import LawError, ScheduleError
from mcf.schedule import verify
from mcf.schedule.kv import STATE_NAMES, TRANSITIONS, next_state
from mcf.schedule.laws import LAWS
from mcf.testing import MUTATIONS, Recipe, break_schedule, random_schedule
from pages import ROOT, read


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("make_protocol", str(ROOT / "scripts" / "make-protocol"))
    spec = spec_from_loader("make_protocol", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes(script: ModuleType) -> None:
    assert read("docs/protocol.md") == script.render(), "run .venv/bin/python scripts/make-protocol"
    assert read("docs/registers.md") == script.register_page(), "run .venv/bin/python scripts/make-protocol"


def test_a_changed_table_changes_the_page(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script.LAWS, "V1", "anything goes")
    assert read("docs/protocol.md") != script.render()


def test_the_directions_of_frames_are_those_of_the_worker(script: ModuleType) -> None:
    bodies = [*vars(Session), *vars(Examiner)]
    obeyed = {name.removeprefix("_") for name in bodies if name.startswith("_") and name[1:] in MESSAGES}
    assert obeyed | {"join", "shutdown", "hold", "stop_after", "abort"} == set(script.TO_WORKERS)


@pytest.mark.parametrize("law", LAWS)
def test_each_law_is_cited_by_tests_and_by_the_code(law: str) -> None:
    tests = [p for p in (ROOT / "tests").rglob("test_*.py") if p.parent.name != "docs"]
    assert [p.name for p in tests if re.search(rf"\b{law}\b", p.read_text(encoding="utf-8"))]
    code = [p for p in (ROOT / "src" / "mcf" / "schedule").glob("*.py") if p.name != "laws.py"]
    assert [p.name for p in code if re.search(rf'"{law}"', p.read_text(encoding="utf-8"))]


def test_the_laws_are_numbered_one_to_eight() -> None:
    assert list(LAWS) == [f"V{number}" for number in range(1, 9)]
    assert len(set(LAWS.values())) == 8


def test_whatever_is_not_in_the_transition_table_raises() -> None:
    events = sorted({event for _, event in TRANSITIONS})
    for state in STATE_NAMES:
        for event in events:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(ScheduleError, match=f"cannot {event}"):
                    next_state(state, event)


@pytest.mark.parametrize("law", ["V4", "V7"])
def test_a_broken_law_is_quoted_above_the_grid(law: str) -> None:
    mutation = next(m for m in MUTATIONS if m.law == law)
    broken = next(b for seed in range(100) if (b := break_schedule(random_schedule(Recipe(seed=seed)), mutation, seed)))
    with pytest.raises(LawError) as caught:
        verify(broken.schedule)
    assert caught.value.grid.splitlines()[0] == f"{law}: {LAWS[law]}"
    assert ">> " in caught.value.grid
