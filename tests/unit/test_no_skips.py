"""`MCF_FORBID_SKIPS=1` turns every kind of skip into a failure, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BODIES = {
    "by_call": "def test_it():\n    pytest.skip('no model')\n",
    "by_mark": "@pytest.mark.skip(reason='no model')\ndef test_it():\n    pass\n",
    "by_fixture": "@pytest.fixture\ndef x():\n    pytest.skip('no model')\n\ndef test_it(x):\n    pass\n",
    "by_import": "pytest.importorskip('no_such_module_at_all')\n",
    "expected_failure": "@pytest.mark.xfail\ndef test_it():\n    assert 0\n",
    "passing": "def test_it():\n    pass\n",
}


def outcomes(tmp_path: Path, *, forbid: bool) -> tuple[dict[str, str], str]:
    """The outcome of each body by name, and all that pytest printed."""
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    for name, body in BODIES.items():
        (tmp_path / f"test_{name}.py").write_text(f"import pytest\n\n{body}")
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--no-fold-skipped", "--continue-on-collection-errors"]
    command += ["-c", os.devnull, f"--rootdir={tmp_path}", str(tmp_path)]
    env = os.environ | {"MCF_FORBID_SKIPS": str(int(forbid))}
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    found = re.findall(r"^([A-Z]+) (?:\[1\] )?test_(\w+)\.py", done.stdout, flags=re.MULTILINE)
    return {name: outcome for outcome, name in found}, done.stdout


def test_every_kind_of_skip_fails_where_skips_are_forbidden(tmp_path: Path) -> None:
    found, printed = outcomes(tmp_path, forbid=True)
    skips = {"by_call": "FAILED", "by_mark": "ERROR", "by_fixture": "ERROR", "by_import": "ERROR"}
    assert found == skips | {"expected_failure": "XFAIL", "passing": "PASSED"}, printed
    assert len(re.findall(r"skips are forbidden here .*: .*(?:no model|no_such_module_at_all)", printed)) >= 4


@pytest.mark.parametrize("name", ["by_call", "by_mark", "by_fixture", "by_import"])
def test_skips_are_allowed_elsewhere(allowed: dict[str, str], name: str) -> None:
    assert allowed[name] == "SKIPPED"


@pytest.fixture(scope="module")
def allowed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return outcomes(tmp_path_factory.mktemp("allowed"), forbid=False)[0]
