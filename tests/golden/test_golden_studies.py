"""The paper's tables and figures as JSON: what they say changes only where somebody means it to."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from lab import study
from mcf.study.papers import STUDIES

DIGITS = 6  # of floats: far more than a residual shows, fewer than the last bits of a sum


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", STUDIES)
def test_the_papers_tables_and_figures(name: str, golden: Callable[[str, str], None]) -> None:
    golden(f"sim-{name}.json", json.dumps(rounded(study(name).to_json()), indent=1) + "\n")
