"""scripts/demo: the document and its question on stdin, a tight budget, the user's own options last."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DATA = ROOT / "src" / "mcf" / "data"
FAKE_MCF = '#!/bin/sh\nprintf "%s\\n" "$@" > args.txt\ncase "$*" in *"--prompt-file -"*) cat > stdin.txt ;; esac\n'


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with spaces in its path, whose setup does nothing and whose mcf writes down what it is given."""
    root = tmp_path / "a checkout"
    for name, text in (("scripts/setup", "#!/bin/sh\n"), (".venv/bin/mcf", FAKE_MCF)):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    shutil.copy(ROOT / "scripts" / "demo", root / "scripts" / "demo")
    shutil.copytree(DATA, root / "src" / "mcf" / "data")
    return root


def demo(root: Path, *args: str) -> tuple[list[str], str]:
    """Run the script from elsewhere; return the arguments that mcf got, and what the script said."""
    done = subprocess.run(
        [root / "scripts" / "demo", *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=root.parent,
        env=os.environ,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return (root / "args.txt").read_text().splitlines(), done.stderr


def test_the_prompt_is_the_document_and_then_the_question(checkout) -> None:
    args, said = demo(checkout)
    assert args == ["run", "demo", "--prompt-file", "-", "--workers", "2", "--kv-memory", "256MiB"]
    question = (DATA / "demo_question.txt").read_text()
    assert (checkout / "stdin.txt").read_text() == (DATA / "ruth_jonah_daniel.txt").read_text() + question
    assert question.strip() in said


def test_it_says_why_the_budget_is_what_it_is(checkout) -> None:
    said = demo(checkout)[1]
    for words in ("256MiB", "46,080 bytes per token", "303 MiB"):
        assert words in said
    assert round(46_080 * 6_894 / 2**20) == 303


def test_the_users_options_come_last_and_win(checkout) -> None:
    assert demo(checkout, "--workers", "3", "--json")[0][-3:] == ["--workers", "3", "--json"]


@pytest.mark.parametrize("option", [["--prompt", "Hello you"], ["--prompt-file", "x"], ["--prompt=Hello"], ["--help"]])
def test_a_prompt_of_the_users_own_takes_the_place_of_ours(checkout, option) -> None:
    args = demo(checkout, *option)[0]
    assert args == ["run", "demo", "--kv-memory", "256MiB", *option]
