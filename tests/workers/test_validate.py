"""`benchmarks/sim/validate.py` measures, predicts and runs; what it finds depends on the machine and is not judged."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mcf.testing.toys import make_toy_model

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sim" / "validate.py"

pytestmark = [pytest.mark.dist, pytest.mark.slow]


def test_model_time_stands_beside_wall_time(tmp_path: Path) -> None:
    model = make_toy_model(tmp_path / "toy")
    options = {
        "model": model,
        "workers": 2,
        "prompt-tokens": 40,
        "chunk-tokens": 20,
        "repeats": 1,
        "policies": "gather,full",
    }
    other = {"policy": "gather", "workers": 4, "rate": "1gbit", "command": "an earlier one"}
    (tmp_path / "found.json").write_text(json.dumps({"rows": [other, other | {"workers": 2, "rate": None}]}))
    command = [sys.executable, str(SCRIPT), "--local", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run([*command, f"--out={tmp_path / 'found.json'}"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"].pop() == other  # of another setting: it stays, with its own command
    assert [row["policy"] for row in found["rows"]] == ["full", "gather"]
    for row in found["rows"]:
        assert row["command"] == found["command"]
        assert min(row["model_time_s"], row["wall_time_s"]) > 0
        assert row["ratio"] == row["model_time_s"] / row["wall_time_s"]
        assert row["parts"].keys() == {"compute", "exposed", "decode"} >= set(row["off"])
        assert row["parts"]["decode"]["wall_s"] > 0
    assert {"machine", "versions", "command", "load"} <= found.keys()
