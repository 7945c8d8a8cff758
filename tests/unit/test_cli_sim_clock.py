"""Whatever `mcf sim` says on a profile whose clock is assumed names that clock; and its times are never wall times."""

import json
from pathlib import Path

import pytest

from mcf.cli import main

CLOCK = "200 MHz assumed"
CASE = """
policies = ["ring", "pd"]
nodes = 4
topology = "mesh:2x2"
prompt_tokens = 256
chunk_tokens = 256
memory = "none"
profile = "cpu-1g"
decode = true
[model]
num_layers = 4
num_q_heads = 4
num_kv_heads = 2
head_dim = 8
hidden_size = 32
intermediate_size = 64
vocab_size = 64
"""


@pytest.fixture
def case(tmp_path: Path) -> str:
    file = tmp_path / "case.toml"
    file.write_text(CASE, encoding="utf-8")
    return str(file)


def test_tables_and_the_object_name_the_clock(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", case, "--profile", "kr260-rtl"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith(("ring ", "pd "))]
    assert len(rows) == 4  # time to the first token, and one generated token
    assert all(CLOCK in line for line in rows)
    assert CLOCK in lines[1]
    heads = [line for line in lines if line.startswith("policy")]
    assert [name in head for name, head in zip(("TTFT (model)", "token (model)"), heads, strict=True)] == [True, True]
    assert "processor (assumed, not in the sum)" in heads[1]
    assert "wall" not in " ".join(lines)
    assert main(["sim", "run", case, "--profile", "kr260-rtl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert CLOCK in found["settings"]
    assert all(CLOCK in row["profile"] for row in found["rows"])


def test_files_name_the_clock(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path(case).read_text(encoding="utf-8").replace('"ring", "pd"', '"ring"')
    one, trace, replay = tmp_path / "one.toml", tmp_path / "trace.json", tmp_path / "replay.html"
    one.write_text(text, encoding="utf-8")
    out = ["--out", str(tmp_path / "out"), "--save-trace", str(trace)]
    assert main(["sim", "run", str(one), "--profile", "kr260-rtl", *out]) == 0
    assert main(["show", "--play", str(trace), "--out", str(replay)]) == 0
    files = [*(tmp_path / "out").iterdir(), trace, replay]
    assert {file.suffix for file in files} == {".csv", ".json", ".html"}
    for file in files:
        assert CLOCK in file.read_text(encoding="utf-8"), file
    assert "One generated token" in (tmp_path / "out" / "one.html").read_text(encoding="utf-8")
    assert capsys.readouterr().err.count("written to") == 1


def test_a_file_that_takes_its_numbers_and_the_list_name_it(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('profile = "kr260-rtl"\n[cluster]\nnodes = 4\ntopology = "mesh:2x2"\n', encoding="utf-8")
    assert main(["sim", "run", case, "--profile", str(mine), "--json"]) == 0
    assert {row["profile"] for row in json.loads(capsys.readouterr().out)["rows"]} == {f"mine ({CLOCK})"}
    assert main(["sim", "list"]) == 0
    assert f"no: {CLOCK}" in capsys.readouterr().out


def test_a_profile_without_an_assumed_clock_has_no_assumed_processor(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "run", case, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert all(row["profile"] == "cpu-1g" for row in rows)
    assert all("processor_s" not in row["decode"] for row in rows)
    names = ("products_s", "attention_s", "network_s", "head_s")
    assert all(row["decode"]["token_s"] == pytest.approx(sum(row["decode"][name] for name in names)) for row in rows)
