"""A run that hangs is told of: where each of its processes stood, and what all of them have printed."""

import re
import sys
from pathlib import Path

import pytest

import launched
from launched import Running

SLEEPER = """
import subprocess, sys, time
code = "import time; print('up', flush=True); time.sleep(1000)"
child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
print("half an answer", flush=True)
print(sys.argv[1], "is ready", file=sys.stderr, flush=True)
child.wait()
time.sleep(1000)
"""


def test_a_run_that_does_not_end_is_told_with_all_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, names = tmp_path / "sleeper.py", ("one", "another")
    script.write_text(SLEEPER)
    runs = [Running([sys.executable, str(script), name]) for name in names]
    with runs[0], runs[1]:
        for running, name in zip(runs, names, strict=True):
            running.wait_for(f"{name} is ready")
        monkeypatch.setattr(launched, "TIMEOUT_S", 0.01)
        with pytest.raises(AssertionError, match="did not end") as caught:
            runs[0].end()
        monkeypatch.undo()
        ended = [running.popen.poll() for running in runs]
    told = str(caught.value)
    assert None not in ended
    assert [told.count(f"{name} is ready") for name in names] == [1, 1]
    for what, count in {"half an answer": 2, r"\d+ [\w-]+ in \S*: ": 4, "Fatal Python error: Aborted": 4}.items():
        assert len(re.findall(what, told)) == count, what
    assert 'sleeper.py", line' in told
