"""`MCF_FORBID_SKIPS=1` turns every kind of skip into a failure, and nothing else."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BY_CALL = "import pytest\n\ndef test_it():\n    pytest.skip('no model')\n"
BY_MARK = "import pytest\n\n@pytest.mark.skip(reason='no model')\ndef test_it():\n    pass\n"
BY_IMPORT = "import pytest\n\npytest.importorskip('no_such_module_at_all')\n"
BY_FIXTURE = "import pytest\n\n@pytest.fixture\ndef x():\n    pytest.skip('no model')\n\ndef test_it(x):\n    pass\n"
EXPECTED_FAILURE = "import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    assert 0\n"
PASSING = "def test_it():\n    pass\n"


def run(tmp_path: Path, body: str, *, forbid: bool) -> subprocess.CompletedProcess[str]:
    shutil.copy(Path(__file__).parents[1] / "conftest.py", tmp_path)
    (tmp_path / "test_body.py").write_text(body)
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, f"--rootdir={tmp_path}", str(tmp_path)]
    env = os.environ | {"MCF_FORBID_SKIPS": str(int(forbid))}
    return subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("body", [BY_CALL, BY_MARK, BY_IMPORT, BY_FIXTURE])
def test_a_skip_fails_where_skips_are_forbidden(tmp_path: Path, body: str) -> None:
    done = run(tmp_path, body, forbid=True)
    assert done.returncode not in (0, 5)
    assert "skips are forbidden here" in done.stdout
    assert "no model" in done.stdout or "no_such_module_at_all" in done.stdout


@pytest.mark.parametrize("body", [EXPECTED_FAILURE, PASSING])
def test_other_outcomes_stay(tmp_path: Path, body: str) -> None:
    assert run(tmp_path, body, forbid=True).returncode == 0


def test_a_skip_is_allowed_elsewhere(tmp_path: Path) -> None:
    assert run(tmp_path, BY_CALL, forbid=False).returncode == 0
