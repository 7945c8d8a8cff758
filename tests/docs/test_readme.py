"""README.md and CONTRIBUTING.md: options, policies, checks and links are those that there are."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from mcf.cli.app import app
from mcf.policies import NAMES
from pages import PAGES, ROOT, read, rows


def table_of(page: str, start: str) -> str:
    """Return the table that begins with these words."""
    return start + read(page).split(start, 1)[1].split("\n\n", 1)[0]


def options(command: str) -> set[str]:
    group: Any = typer.main.get_command(app)
    return {name for param in group.commands[command].params for name in param.opts if name.startswith("--")}


@pytest.mark.parametrize(("command", "also"), [("run", "both"), ("plan", "both"), ("show", "")])
def test_the_readme_lists_the_options_that_there_are(command: str, also: str) -> None:
    table = rows(table_of("README.md", "| option | of |"))
    listed = {name for row in table if row[1] in (command, also, "all") for name in re.findall(r"--[a-z-]+", row[0])}
    assert listed == options(command)


def test_the_readme_lists_the_policies_that_there_are() -> None:
    assert [row[0].strip("`") for row in rows(table_of("README.md", "| policy | what"))] == list(NAMES)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_to_files_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    assert [t for t in targets if "://" not in t and not (path.parent / t).exists()] == []


def test_the_checks_of_the_contributing_page_exist() -> None:
    table = [row[0] for row in rows(read("CONTRIBUTING.md").split("## The checks", 1)[1])]
    named = [shlex.split(cell.strip("`"))[0] for cell in table]
    assert {name for name in named if not name.startswith(".venv/bin/")} == {"scripts/check", "scripts/test", ".ci/run"}
    assert {Path(name).name for name in named if name.startswith(".venv/bin/")} == {
        "python",
        "ruff",
        "lint-imports",
        "mypy",
    }
    assert (ROOT / "tests" / "unit").is_dir()
