"""`mcf sim`: tables, files, JSON; and one clear line for what cannot be."""

import csv
import json
import re
from pathlib import Path

import pytest

from command import ROOT, documented_keys
from command import mcf as run_mcf
from lab import share
from mcf.cli import main
from mcf.study.papers import STUDIES

ROW = {"policy", "nodes", "prompt_tokens", "ttft_s", "bound_s", "traffic_bytes", "peak_kv_bytes", "limit"}
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
REMOTE = re.compile(
    r"""(https?:)?//[\w.-]+\.|(?:src|href)\s*=\s*["'](?!data:|#)|@import|url\(|fetch\(|XMLHttp|<link|<script src"""
)


@pytest.fixture(autouse=True)
def shared(monkeypatch: pytest.MonkeyPatch) -> None:
    share(monkeypatch)


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["sim", *args]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def error(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(["sim", *args]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    return err


def inner_keys(what: str) -> set[str]:
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    return set(re.findall(rf"^\| `{what}\[\]\.(\w+)` \|", page, flags=re.MULTILINE))


def test_table_1_in_a_process_of_its_own_in_seconds_without_torch() -> None:
    done = run_mcf("sim", "run", "table1")
    assert (done.code, done.err) == (0, "")
    for words in ("1.9378 GB", "4.4040 GB", "TTFT (model)", "physically impossible", "not explained", "[1]"):
        assert words in done.out


@pytest.mark.parametrize("name", STUDIES)
def test_each_item_is_printed_with_its_flag_and_arithmetic(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "run", name, "--json"))
    text = printed(capsys, "run", name)
    for item in found["items"]:
        assert item["name"] in text
        assert item["arithmetic"] in text
        assert item["flag"] in text


def test_the_json_object_is_the_documented_one(capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "run", "all", "--json")
    assert out.count("\n") == 1
    found = json.loads(out)
    assert found.keys() == documented_keys("sim run").keys()
    assert {row["study"] for row in found["rows"]} == set(STUDIES) == {item["study"] for item in found["items"]}
    for what in ("rows", "items"):
        assert {frozenset(one) for one in found[what]} == {frozenset(inner_keys(what))}
    assert inner_keys("rows") > ROW
    cells = [row for row in found["rows"] if row["published"]]
    assert len(cells) == 12
    assert all(row["published"].keys() == row["flag"].keys() == {"ttft_s", "traffic_bytes"} for row in cells)


def test_files_hold_everything_and_the_page_asks_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed(capsys, "run", "fig4", "--out", str(tmp_path / "new" / "folder"))
    files = {path.name: path for path in (tmp_path / "new" / "folder").iterdir()}
    assert set(files) == {"fig4.csv", "fig4-items.csv", "fig4.json", "fig4.png", "fig4.html"}
    found = json.loads(files["fig4.json"].read_text())
    lines = list(csv.DictReader(files["fig4.csv"].read_text().splitlines()))
    assert [line["ttft_s"] for line in lines] == [str(row["ttft_s"]) for row in found["rows"]]
    assert [line["flag"] for line in csv.DictReader(files["fig4-items.csv"].read_text().splitlines())] == [
        i["flag"] for i in found["items"]
    ]
    assert files["fig4.png"].read_bytes().startswith(b"\x89PNG")
    page = files["fig4.html"].read_text()
    assert not REMOTE.search(re.sub(r"data:image/png;base64,[\w+/=]+", "data:", page))
    assert "(model time)" in page
    assert all(item["flag"] in page for item in found["items"])


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, "run", str(path), "--json"))
    assert found["study"] == path.stem
    assert found["items"] == []
    assert any(row["ttft_s"] for row in found["rows"])
    assert all((row["ttft_s"] is None) == (row["why"] is not None) for row in found["rows"])


def test_a_policy_that_cannot_is_a_row_that_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "run", str(ROOT / "examples" / "stragglers.toml"))
    assert "no: got 1 node for policy pd: expected at least 2" in text
    assert "(3 rows)" in text


def test_the_list_names_what_a_file_may_name(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "list")
    for words in ("paper16k-fitted", "no: fitted", "kr260-physical", "mars-paper", "qwen2.5-1.5b", "mesh", "table1"):
        assert words in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tabel1"], "unknown table or figure 'tabel1': did you mean 'table1'?"),
        (["none.toml"], "cannot read the experiment 'none.toml' (No such file or directory)"),
        (["table1", "--profile", "cpu-1g"], "got --profile for table1: expected it with a TOML file"),
        (["fig4", "--save-trace", "x.json"], "got --save-trace for fig4"),
        (["{crossover}", "--save-trace", "x.json"], "got --save-trace for 24 cases: expected one; shorten the lists"),
        (["{crossover}", "--profile", "gpu-1g"], "unknown profile 'gpu-1g': did you mean 'gpu-10g'?"),
        (["{one-case}", "--save-trace", "no/such/x.json"], "cannot write the trace to 'no/such/x.json'"),
        (["{one-case}", "--out", "{file}"], "cannot make the folder"),
    ],
)
def test_what_cannot_be_is_one_line(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    names = {path.stem: str(path) for path in EXAMPLES} | {"file": str(tmp_path / "file")}
    assert words in error(capsys, "run", *(arg.format(**names) for arg in args))


def test_without_matplotlib_the_terminal_works_and_files_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    assert "TTFT" in printed(capsys, "run", "table2")
    assert main(["sim", "run", "fig5", "--out", str(tmp_path)]) == 2
    assert "pip install 'mcf[sim]'" in capsys.readouterr().err
