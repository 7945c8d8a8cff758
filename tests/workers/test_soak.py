"""benchmarks/faults on a few kills and requests: the same code that plays hundreds of them."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import mcf
import netns
from mcf.testing.toys import make_toy_model

pytestmark = [pytest.mark.dist, pytest.mark.slow]

NUM_KILLS = 6
NUM_REQUESTS, WARM_UP = 150, 60


def script(name: str) -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "faults" / f"{name}.py"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # scripts there import each other
    spec = importlib.util.spec_from_file_location(f"faults_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def run() -> ModuleType:
    return script("run")


@pytest.fixture(scope="module")
def soak(run, tmp_path_factory):
    with run.playing(tmp_path_factory.mktemp("soak"), 2) as it:
        yield it


def test_a_few_random_kills_leave_nothing_behind(run, soak):
    rounds = run.soak(soak, NUM_KILLS)
    assert [it for it in rounds if it.broken] == []
    found = run.report(rounds, 2, [{"wall_s": 1.0}])
    assert found["struck"] == NUM_KILLS
    assert found["broken"] == []


def test_the_head_killed_at_each_phase_leaves_nothing_behind(run, soak):
    rounds = run.table(run.HEAD_POINTS, ("kill head",), over="local")
    for it in rounds:
        soak.play(it)
    assert [it for it in rounds if it.broken] == []
    assert [it.point for it in rounds if not it.has_struck] == []


@contextlib.contextmanager
def over_hosts(run, soak) -> Iterator[str]:
    """Have the soak's worlds span two hosts, or where there can be none, processes on loopback."""
    over = "tcp" if netns.why_not() else "hosts"
    with run.places_of(over) as places:
        soak.places, soak.over = places, over
        yield over
    soak.places, soak.over = (), "local"


@pytest.mark.parametrize(
    ("kind", "points"),
    [
        ("kill", ("importing", "joining", "loading", "prefill-early", "prefill-late", "convergence", "decode")),
        ("kill head", ("joining", "loading", "prefill-early", "prefill-late", "convergence", "decode", "shutdown")),
        ("kill two", ("joining", "prefill-late", "shutdown")),
        ("stop short", ("prefill-early",)),
        ("stop", ("decode",)),
    ],
)
def test_each_phase_over_hosts(run, soak, kind, points):
    """All of them, with every kind: `benchmarks/faults/run.py --over hosts --table`."""
    with over_hosts(run, soak) as over:
        rounds = run.table(points, (kind,), over=over)
        for it in rounds:
            soak.play_accident(it)
        soak.play_good_run(rounds[-1])
    assert [it for it in rounds if it.broken] == []
    struck = [it.point for it in rounds if it.has_struck]
    assert struck == [point for point in points if "head" in kind or (point != "shutdown" and kind != "stop short")]


def test_a_broken_rule_is_told(run):
    it = run.Round(num_workers=1, policy="ring", num_tokens=1, kind="kill", point="prefill")
    soak = run.Soak.__new__(run.Soak)
    soak.answers = {1: [5]}
    soak._judge_end(it, run.Ended(code=1, at_s=10.0, out="error: something else\n"), 1.0)
    soak._judge_end(it, run.Ended(code=0, at_s=10.0, out='{"ids": [6]}\n'), None)
    assert [what.split(":")[0] for what in it.broken] == [
        "code 1, 'error",
        "it took 9.0 s",
        "neither an error nor the right answer",
    ]


def test_many_requests_leave_nothing_and_mix_nothing(tmp_path):
    many = script("many_requests")
    model = make_toy_model(tmp_path / "toy", "llama", max_positions=4096, tokenizer=True)
    cases = many.prompts(model, 1, 15)
    with mcf.load(model, workers=2, chunk_tokens=many.CHUNK, poison=True) as llm:
        it = many.Requests(llm, cases, 1)
        it.play(NUM_REQUESTS)
    assert it.num_cancelled > 5
    assert many.broken(it.growth(WARM_UP), it.wrong, it.most_pool_bytes()) == []


def test_growth_and_wrong_answers_are_told():
    many = script("many_requests")
    growth = {"rss_bytes": [0, 1 << 30], "num_fds": [0, 0], "num_threads": [1, 0], "pool_bytes": [0, 0]}
    assert many.broken(growth, ["request 1: got"], 7) == [
        "request 1: got",
        "rss_bytes of worker 0 grew by 1073741824",
        "num_threads of the head grew by 1",
        "pools held 7 bytes between requests",
    ]
