"""The first command of the README, for real: the demo model reads the demo document within its budget."""

import json
import subprocess

import pytest

from mcf.units import parse_bytes
from pages import ROOT


@pytest.mark.dist
@pytest.mark.slow
def test_the_demo_reads_its_document_drains_replicas_and_answers() -> None:
    done = subprocess.run([ROOT / "scripts" / "demo", "--json"], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 6_000 <= result["prompt_tokens"] <= 7_500
    assert result["workers"] == 2
    assert result["kv_budget_bytes"] == parse_bytes("256MiB")
    assert max(result["peak_kv_bytes"]) <= result["kv_budget_bytes"]
    factors = result["replica_factor"]
    assert factors[0] == 2.0
    assert factors[-1] < factors[len(factors) // 2] <= factors[0], "no replica had to drain"
    assert result["certificate"]["complete"]
    assert result["certificate"]["replicas"] == 0
    assert "Daniel" in result["text"]
    assert "certificate" in done.stderr
