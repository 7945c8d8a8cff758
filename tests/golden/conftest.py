"""Golden files: the text of small schedules. `pytest tests/golden --update-golden` writes them anew."""

from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with the golden file of that name."""

    def compare(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"no golden file {name}: write it with pytest tests/golden --update-golden"
        assert text.splitlines() == path.read_text(encoding="utf-8").splitlines()

    return compare
