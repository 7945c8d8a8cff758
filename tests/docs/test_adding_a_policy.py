"""docs/adding-a-policy.md: the page's policy is whole, short, and right."""

import inspect

import pytest

from mcf.schedule import Builder
from mcf.schedule.steps import KEEP, STREAM
from mcf.testing import check_policy
from mcf.testing.policies import policy_requests
from pages import DOCS, blocks

PYTHON = [block.text for block in blocks(DOCS / "adding-a-policy.md") if block.language == "python"]


def test_the_policy_is_under_50_lines() -> None:
    assert 30 < len(PYTHON[0].splitlines()) < 50


def test_the_page_goes_from_an_empty_file_to_green(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "keep_first"}
    for text in PYTHON:
        exec(compile(text, "docs/adding-a-policy.md", "exec"), names)
    count, _, rest = capsys.readouterr().out.partition(" ")
    assert rest == "schedules are right\n"
    assert int(count) > len([r for r in policy_requests() if r.stream_slots > 1])


def test_the_policy_does_what_the_page_says() -> None:
    names: dict[str, object] = {}
    exec(compile(PYTHON[0], "docs/adding-a-policy.md", "exec"), names)
    request = next(r for r in policy_requests() if r.num_nodes == 4 and r.prompt_tokens == 23 and r.stream_slots == 2)
    steps = names["plan"](request).steps  # type: ignore[operator]
    kept, streamed = (steps[steps["hold"] == hold] for hold in (KEEP, STREAM))
    assert set(kept["chunk"].tolist()) == {0}
    assert set(streamed["ahead"][streamed["c_lo"] < streamed["chunk"]].tolist()) == {1}


def test_a_policy_that_is_wrong_is_not_green() -> None:
    broken = PYTHON[0].replace("(node, *others)]", "(node, *others[1:])]")
    assert broken != PYTHON[0]
    names: dict[str, object] = {}
    exec(compile(broken, "docs/adding-a-policy.md", "exec"), names)
    with pytest.raises(ValueError, match="V7 broken"):
        check_policy(names["plan"])  # type: ignore[arg-type]


def test_the_verbs_of_the_page_are_the_builders() -> None:
    page = (DOCS / "adding-a-policy.md").read_text(encoding="utf-8")
    table = page.split("| verb | writes |", 1)[1].split("\n\n", 1)[0]
    verbs = {name for name, value in inspect.getmembers(Builder, inspect.isfunction) if not name.startswith("_")}
    for verb in verbs - {"build", "tokens_in", "has_tokens"}:
        assert f"b.{verb}" in table
