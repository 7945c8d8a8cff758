"""`mcf plan` and `mcf show`: a schedule in numbers, in words, and judged."""

import re

import pytest

from command import check_json
from mcf.cli import main
from mcf.schedule import grid, parse, verify

PLAN = ("--prompt-tokens", "500", "--workers", "3", "--chunk-tokens", "64", "--max-tokens", "16", "--kv-memory", "1MiB")


@pytest.fixture
def saved(toy, tmp_path, capsys):
    path = tmp_path / "plan.txt"
    assert main(["plan", str(toy), *PLAN, "--save", str(path)]) == 0
    capsys.readouterr()
    return path


def test_the_table_names_what_the_replay_saw(toy, saved, capsys) -> None:
    assert main(["plan", str(toy), *PLAN]) == 0
    table = capsys.readouterr().out
    sched = parse(saved.read_text(encoding="utf-8"))
    assert f"500 tokens in {sched.meta.num_chunks} chunks of 64" in table
    assert f"{len(sched):,} in all" in table
    assert table.count("1 MiB") == 3  # each node's budget
    for words in ("new KV", "fetched KV", "queries", "states", "per token", "replica factor", "reserve"):
        assert words in table


def test_json_has_the_documented_keys_and_the_schedules_numbers(toy, saved, capsys) -> None:
    assert main(["plan", str(toy), *PLAN, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found = check_json(out, "plan")
    sched = parse(saved.read_text(encoding="utf-8"))
    report = verify(sched)
    assert found["peak_kv_bytes"] == list(report.peak_bytes)
    assert found["bytes"] == report.traffic
    assert found["replica_factor"] == list(report.replica_factor)
    assert sum(found["num_rows"].values()) == len(sched)
    assert sum(found["tokens_per_worker"]) == 500
    assert found["kv_budget_bytes"] == 2**20


def test_no_budget_is_null(toy, capsys) -> None:
    assert main(["plan", str(toy), "--prompt-tokens", "100", "--json"]) == 0
    assert check_json(capsys.readouterr().out, "plan")["kv_budget_bytes"] is None


def test_a_prompt_that_fills_the_window_can_be_planned(toy, capsys) -> None:
    assert main(["plan", str(toy), "--prompt-tokens", "512", "--json"]) == 0
    assert check_json(capsys.readouterr().out, "plan")["max_tokens"] == 0


def test_weights_are_not_looked_at(toy, tmp_path, capsys) -> None:
    (tmp_path / "config.json").write_bytes((toy / "config.json").read_bytes())
    assert main(["plan", str(tmp_path), "--prompt-tokens", "100"]) == 0


def test_the_demo_model_is_planned_from_its_header(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("MCF_CACHE", str(tmp_path / "cache"))
    assert main(["plan", "demo", "--prompt-tokens", "8k", "--workers", "4", "--kv-memory", "256MiB"]) == 0
    assert "46,080 bytes per token" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


def test_of_a_hub_model_only_the_config_is_fetched(toy, tmp_path, monkeypatch, capsys) -> None:
    asked = []

    def fetch(hub_id: str, *, allow_patterns: list[str], **options: object) -> str:
        asked.append((hub_id, allow_patterns))
        (tmp_path / "config.json").write_bytes((toy / "config.json").read_bytes())
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert main(["plan", "some/model", "--prompt-tokens", "100"]) == 0
    assert asked == [("some/model", ["config.json"])]
    assert "100 tokens in" in capsys.readouterr().out


def test_show_prints_every_step_and_the_grid(saved, capsys) -> None:
    assert main(["show", str(saved)]) == 0
    text = saved.read_text(encoding="utf-8")
    assert capsys.readouterr().out == f"{text}\n{grid(parse(text))}\n"


def test_verify_reports_a_sound_schedule(saved, capsys) -> None:
    assert main(["show", str(saved), "--verify"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("keeps the laws V1-V8\n")
    assert "peak" in out


def test_verify_names_the_broken_law_the_row_and_the_grid(saved, capsys) -> None:
    text = saved.read_text(encoding="utf-8")
    saved.write_text(re.sub(r"^meta budgets=.*$", "meta budgets=1000,1000,1000", text, flags=re.MULTILINE))
    assert main(["show", str(saved), "--verify"]) == 2
    out, err = capsys.readouterr()
    first, law, head, *rows = err.splitlines()
    assert out == ""
    assert re.match(r"error: V4 broken \(row \d+\): ", first)
    assert law.startswith("V4: no node exceeds its KV budget")
    assert head.split() == ["pos", "node", "0", "node", "1", "node", "2"]
    assert len([row for row in rows if ">> " in row]) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("mcf-schedule 1", "mcf-schedule 9"), "expected a first line 'mcf-schedule 1'"),
        (("produce", "prodigy"), "of the schedule cannot be read"),
        (("meta policy=", "meta polity="), "unknown meta key 'polity'"),
        (("meta num_nodes=3", "meta num_nodes=x"), "expected a whole number"),
    ],
)
def test_a_damaged_schedule_is_one_line(saved, capsys, change, words) -> None:
    saved.write_text(saved.read_text(encoding="utf-8").replace(*change, 1))
    assert main(["show", str(saved), "--verify"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_files_that_cannot_be_saved_or_shown(toy, tmp_path, capsys) -> None:
    assert main(["plan", str(toy), "--prompt-tokens", "9", "--save", str(tmp_path)]) == 2
    assert "cannot write the schedule" in capsys.readouterr().err
    assert main(["show", str(tmp_path / "none")]) == 2
    assert "expected a schedule saved by `mcf plan --save`" in capsys.readouterr().err


CLUSTER = ("plan", "--prompt-tokens", "200", "--policy", "gather", "--cluster")


def test_a_cluster_predicts_the_time_and_says_what_limits(toy, capsys) -> None:
    assert main([*CLUSTER, "cpu-1g", str(toy), "--workers", "3"]) == 0
    table = capsys.readouterr().out
    assert "3 workers" in table
    assert re.search(r"^predicted +\d.* to the first token, \d+\.\d\d times the bound$", table, flags=re.MULTILINE)
    assert re.search(r"^what limits +\w.*: at least ", table, flags=re.MULTILINE)
    assert main([*CLUSTER, "paper16k-fitted", str(toy)]) == 0
    assert "no such hardware exists" in capsys.readouterr().out


def test_a_cluster_in_json(toy, capsys) -> None:
    assert main([*CLUSTER, "cpu-1g", str(toy), "--json", "--kv-memory", "1MiB"]) == 0
    found = check_json(capsys.readouterr().out, "plan")
    assert found["workers"] == 2
    assert found["kv_budget_bytes"] == 2**20
    told = found["prediction"]
    assert told["bound_s"] == max(told["bounds"].values()) <= told["ttft_s"]
    assert f"{told['limit']}_s" in told["bounds"]
    assert main(["plan", "--prompt-tokens", "200", str(toy), "--json"]) == 0
    assert check_json(capsys.readouterr().out, "plan")["prediction"] is None


def test_workers_and_budgets_of_a_cluster_file(toy, capsys, tmp_path) -> None:
    numbers = ("flops_s", "memory_bytes_s", "memory_bytes", "link_bytes_s", "link_latency_s", "step_overhead_s")
    text = 'name = "three"\nphysical = true\n' + "".join(
        f'[{name}]\nvalue = 1e9\nsource = "x"\n' for name in (*numbers, "weight_bytes")
    )
    text = text.replace("[weight_bytes]\nvalue = 1e9", "[weight_bytes]\nvalue = 4")
    nodes = [f'[[nodes]]\nsource = "x"\nkv_budget_bytes = {size}\n' for size in (1 << 20, 2 << 20, 3 << 20)]
    path = tmp_path / "three.toml"
    path.write_text(text + "".join(nodes))
    assert main([*CLUSTER, str(path), str(toy)]) == 0
    table = capsys.readouterr().out
    assert [line.split("  ")[0] for line in table.splitlines() if line.startswith("node ")] == [
        "node 0",
        "node 1",
        "node 2",
    ]
    assert all(size in table for size in ("1 MiB", "2 MiB", "3 MiB"))
    path.write_text(text + "".join(nodes).replace("kv_budget_bytes", "kv_budjet_bytes", 1))
    assert main([*CLUSTER, str(path), str(toy)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "three.toml, line 26: did you mean 'nodes.kv_budget_bytes'" in error
    for name, says in (("cpu-1", "did you mean 'cpu-1g'"), (str(tmp_path / "no.toml"), "cannot read the profile")):
        assert main([*CLUSTER, name, str(toy)]) == 2
        assert says in capsys.readouterr().err
