"""Each policy on a 4-node, 4-chunk prompt, line by line: a change that means to change nothing changes none."""

from collections.abc import Callable

import pytest

from mcf.policies import NAMES, least_budget, plan
from mcf.schedule import dump, parse, verify
from plans import request, with_budgets

Golden = Callable[[str, str], None]


@pytest.mark.parametrize("name", NAMES)
def test_policies_without_budgets(name: str, golden: Golden) -> None:
    sched = plan(name, request(4, 1024, 256, max_new_tokens=64))
    verify(sched)
    golden(f"{name}.txt", dump(sched))


def test_mars_on_a_tight_budget(golden: Golden) -> None:
    asked = request(4, 1024, 256, max_new_tokens=64, num_layers=8)
    sched = plan("mars-paper", with_budgets(asked, int(least_budget("mars-paper", asked) * 1.5)))
    verify(sched)
    golden("mars-paper-tight.txt", dump(sched))


def test_mars_on_a_ring(golden: Golden) -> None:
    sched = plan("mars-paper", request(4, 1024, 256, topology="ring"))
    verify(sched)
    golden("mars-paper-ring.txt", dump(sched))


@pytest.mark.parametrize("name", [*NAMES, "mars-paper-tight", "mars-paper-ring"])
def test_golden_files_are_legal_schedules(name: str, request: pytest.FixtureRequest) -> None:
    path = request.path.parent / f"{name}.txt"
    verify(parse(path.read_text(encoding="utf-8")))
