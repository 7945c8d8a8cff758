"""`mcf plan --cluster` without a policy: all policies side by side, and whether any fits."""

import json

import pytest

from command import check_json
from mcf.cli import main
from mcf.mars import FORMS, REFERENCES

PLAN = ("plan", "qwen2.5-1.5b", "--prompt-tokens", "64k", "--cluster", "gpu-10g", "--workers", "16")
KEYS = {
    *("policy", "nodes", "prompt_tokens", "chunk_tokens", "ttft_s", "bound_s", "limit", "traffic_bytes", "link_bytes"),
    *("peak_kv_bytes", "missing_bytes", "fits", "is_reference", "bounds"),
}


def rows(out: str) -> dict[str, dict]:
    found = check_json(out, "plan --cluster")
    assert out.count("\n") == 1
    assert all(row.keys() == KEYS for row in found["rows"])
    return {row["policy"]: row for row in found["rows"]}


def test_all_policies_stand_side_by_side(capsys) -> None:
    assert main([*PLAN, "--json"]) == 0
    found = rows(capsys.readouterr().out)
    assert set(found) == {*FORMS, *REFERENCES}
    for name, row in found.items():
        assert (row["nodes"], row["prompt_tokens"]) == (16, 65536)
        assert 0 < row["bound_s"] <= row["ttft_s"]
        assert row["limit"] in ("compute", "weights", "inbound", "bisection", "latency")
        assert row["is_reference"] == (name in REFERENCES)
        assert 0 < row["link_bytes"] <= row["traffic_bytes"]
    assert found["one-shot"]["chunk_tokens"] == 65536
    assert found["full"]["peak_kv_bytes"] > found["gather"]["peak_kv_bytes"]


def test_the_chunk_size_that_is_given_counts(capsys) -> None:
    assert main([*PLAN, "--chunk-tokens", "4096", "--json"]) == 0
    found = rows(capsys.readouterr().out)
    assert {row["chunk_tokens"] for name, row in found.items() if name != "one-shot"} == {4096}
    free = [row["ttft_s"] for row in found.values()]
    assert main([*PLAN, "--json"]) == 0
    best = rows(capsys.readouterr().out)
    assert all(best[name]["ttft_s"] <= row["ttft_s"] * 1.01 for name, row in found.items())
    assert min(free) > 0


def test_budgets_decide_what_fits_and_the_exit_code_says_so(capsys) -> None:
    assert main([*PLAN, "--kv-memory", "400MiB", "--json"]) == 0
    found = rows(capsys.readouterr().out)
    assert found["gather"]["fits"]
    assert not found["full"]["fits"]
    assert found["full"]["missing_bytes"] == found["full"]["peak_kv_bytes"] - 400 * 2**20
    order = [row["fits"] for row in found.values() if not row["is_reference"]]
    assert order == sorted(order, reverse=True)
    assert main([*PLAN, "--kv-memory", "1MiB"]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out.count(" short") == len(FORMS) + len(REFERENCES)


def test_the_table_is_for_people(capsys) -> None:
    assert main([*PLAN, "--kv-memory", "400MiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["policy", "TTFT", "bound", "limit"]
    assert sum(line.startswith(tuple(FORMS)) for line in lines) == len(FORMS)
    assert any(line.startswith("(pipeline)") for line in lines)
    assert "No schedule on these nodes takes less than" in lines[-3]
    assert "per node and chunk on" in lines[-2]


def test_one_node_has_no_pd(capsys) -> None:
    assert (
        main(["plan", "smollm2-135m", "--prompt-tokens", "1k", "--cluster", "cpu-1g", "--workers", "1", "--json"]) == 0
    )
    found = rows(capsys.readouterr().out)
    assert "pd" not in found
    assert {row["traffic_bytes"] for row in found.values()} == {0}


def test_a_policy_and_a_file_ask_for_a_schedule(capsys, tmp_path) -> None:
    asked = ("plan", "smollm2-135m", "--prompt-tokens", "300", "--cluster", "cpu-1g")
    assert main([*asked, "--policy", "ring", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "ring"
    assert main([*asked, "--save", str(tmp_path / "plan.txt")]) == 0
    assert (tmp_path / "plan.txt").read_text(encoding="utf-8").startswith("mcf-schedule 1\n")


def test_a_plan_for_many_workers_keeps_its_multicasts(capsys) -> None:
    asked = ("plan", "smollm2-135m", "--prompt-tokens", "8k", "--chunk-tokens", "8k", "--policy", "gather", "--json")
    sends = {}
    for workers in (64, 66):
        assert main([*asked, "--workers", str(workers)]) == 0
        sends[workers] = json.loads(capsys.readouterr().out)["num_rows"]["send"]
    assert sends[66] < sends[64] / 10


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--cluster", "gpu-10"), "did you mean 'gpu-10g'"),
        (("--workers", "0"), "expected 1 to 1024"),
        (("--workers", "-3"), "expected 1 to 1024"),
        (("--prompt-tokens", "0"), "it must be above zero"),
        (("--chunk-tokens", "0"), "it must be above zero"),
        (("--kv-memory", "-1"), "expected"),
    ],
)
def test_mistakes_are_one_line(capsys, change, words) -> None:
    assert main([*PLAN, *change]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
