"""benchmarks/faults/run.py on a few kills: the same code that plays hundreds of them."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.dist

NUM_KILLS = 6


@pytest.fixture(scope="module")
def run() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "faults" / "run.py"
    spec = importlib.util.spec_from_file_location("soak_run", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def soak(run, tmp_path_factory):
    with run.playing(tmp_path_factory.mktemp("soak"), 2) as it:
        yield it


def test_a_few_random_kills_leave_nothing_behind(run, soak):
    rounds = run.soak(soak, NUM_KILLS)
    assert [it for it in rounds if it.broken] == []
    found = run.report(rounds, 2, 1.0)
    assert found["struck"] == NUM_KILLS
    assert found["broken"] == []


def test_the_head_killed_at_each_phase_leaves_nothing_behind(run, soak):
    rounds = run.head_rounds()
    for it in rounds:
        soak.play(it)
    assert [it for it in rounds if it.broken] == []
    assert [it.point for it in rounds if not it.has_struck] == []


def test_a_broken_rule_is_told(run):
    it = run.Round(num_workers=1, policy="ring", num_tokens=1, kind="kill", point="prefill")
    soak = run.Soak.__new__(run.Soak)
    soak.answers = {1: [5]}
    soak._judge_end(it, 1, "error: something else\n", 10.0, 1.0)
    soak._judge_end(it, 0, '{"ids": [6]}\n', 10.0, None)
    assert [what.split(":")[0] for what in it.broken] == [
        "code 1, 'error",
        "it took 9.0 s",
        "neither an error nor the right answer",
    ]
