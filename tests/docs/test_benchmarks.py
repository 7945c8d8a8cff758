"""docs/benchmarks.md lists the options of `mcf bench` that there are."""

import re
from typing import Any

import pytest
import typer

from mcf.cli.app import app
from pages import rows, section


def options(command: str) -> set[str]:
    group: Any = typer.main.get_command(app)
    return {f for p in group.commands["bench"].commands[command].params for f in p.opts if f.startswith("--")}


@pytest.mark.parametrize("command", ["prefill", "decode", "compare"])
def test_the_page_lists_the_options_that_there_are(command: str) -> None:
    table = rows(section("docs/benchmarks.md", "## One configuration"))
    listed = {
        flag for row in table if command in row[1] or row[1] == "all" for flag in re.findall(r"--[a-z-]+", row[0])
    }
    assert listed == options(command)
