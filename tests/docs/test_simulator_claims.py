"""docs/simulator.md names a test for each claim: those tests exist."""

import re
from pathlib import Path

from pages import read

TESTS = Path(__file__).parents[1]


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", read("docs/simulator.md")))
    written = {
        name for path in TESTS.rglob("test_*.py") for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    assert len(named) > 25
    assert named - written == set()
