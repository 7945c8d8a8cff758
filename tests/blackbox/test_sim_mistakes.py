"""What a user of the planner and the simulator gets wrong: one line that says what was expected, exit code 2."""

import json
from pathlib import Path

import pytest

from mcf.cli.entry import main
from mcf.engine.clusters import speeds_of
from mcf.sim import load_profile

CASE = """nodes = 4
prompt_tokens = 2048
policies = ["gather"]
profile = "cpu-1g"

[model]
name = "qwen2.5-0.5b"
"""
CLUSTER = 'profile = "cpu-1g"\n\n[cluster]\nnodes = 3\n'
PLAN = ["plan", "qwen2.5-0.5b", "--prompt-tokens", "8k"]


def line(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The one line of stderr of a command that refuses."""
    assert main(list(args)) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removesuffix("\n")


PRESETS = (
    "cpu-1g, cpu-50m, gpu-100g, gpu-10g, kr260-physical, kr260-rtl, paper16k-fitted, or a file whose name ends in .toml"
)
SIM = [
    (
        '"cpu-1g"',
        '"cpu-1gb"',
        f"unknown profile 'cpu-1gb': did you mean 'cpu-1g'? known are {PRESETS} (my.toml, line 4)",
    ),
    ("nodes = 4", "nodes = 0", "got nodes = 0 in my.toml, line 1: expected 1 to 1024"),
    ("nodes = 4", "nodes = -2", "got nodes = -2 in my.toml, line 1: expected 1 to 1024"),
    (
        "2048",
        "0",
        "got 0 as number of tokens (it must be above zero): expected for example 300, 8k or 1M (my.toml, line 2)",
    ),
    ("2048", "-5", "got -5 as number of tokens (it is negative): expected for example 300, 8k or 1M (my.toml, line 2)"),
    (
        '["gather"]',
        '["gathr"]',
        "unknown policy 'gathr': did you mean 'gather'? known are full, gather, mars, mars-paper, one-shot, "
        "pass-q, pd, "
        "ring, ulysses, zigzag (my.toml, line 3)",
    ),
    (
        "nodes = 4\n",
        'nodes = 4\ntopology = "tree:0-1,1-2,2-0,2-3"\n',
        "got a tree in which link 0-2 closes a cycle: expected none; take it out, or say graph (my.toml, line 2)",
    ),
    (
        "nodes = 4\n",
        'nodes = 4\ntopology = "graph:0-1,2-3"\n',
        "got a graph without a way from node 0 to node 2: expected every node to reach every other; add a "
        "link (my.toml, "
        "line 2)",
    ),
    (
        "nodes = 4\n",
        'nodes = 4\nmemory = "0"\n',
        "got '0' as size in bytes (it must be above zero): expected for example 256MiB, 24GiB or 1GB (my.toml, line 2)",
    ),
    (
        "nodes = 4\n",
        "nodes = 4\ndrain_chunks = -1\n",
        "got drain_chunks = -1 in my.toml, line 2: expected at least 0",
    ),
    (
        "nodes = 4",
        "node = 4",
        "unknown key 'node' in my.toml, line 1: did you mean 'nodes'? known are name, policies, nodes, prompt_tokens, "
        "chunk_tokens, node_tokens, memory, profile, topology, seeds, alpha, stream_slots, buffer, "
        "drain_chunks, layers, "
        "spread, decode, model, cluster",
    ),
    ("nodes = 4", "nodes = ", "cannot read my.toml as TOML (Invalid value (at line 1, column 9)): correct that line"),
]
FILES = [
    (
        CLUSTER + 'topology = "tree:0-1,1-2,2-0"\n',
        "got a tree in which link 0-2 closes a cycle: expected none; take it out, or say graph (my.toml, line 5)",
    ),
    (
        CLUSTER + 'topology = "graph:0-1"\n',
        "got a graph without a way from node 0 to node 2: expected every node to reach every other; add a "
        "link (my.toml, "
        "line 5)",
    ),
    (
        CLUSTER + '[cluster.link]\nrate = "0Mbit/s"\n',
        "got '0Mbit/s' as rate (it must be above zero): expected for example 1Gbps, 100Mbit/s or 125MB/s (key rate in "
        "my.toml, line 6)",
    ),
    (
        CLUSTER + '[cluster.link]\nlatency = "-1us"\n',
        "got '-1us' as duration (it is negative): expected for example 200us, 1.5s or 2m (key latency in "
        "my.toml, line 6)",
    ),
    (
        CLUSTER + '[cluster.link]\nrat = "1Gbit/s"\n',
        "unknown key 'cluster.link.rat' in my.toml, line 6: did you mean 'cluster.link.rate'? known are rate, latency",
    ),
    (CLUSTER.replace("= 3", "= 0"), "got cluster.nodes = 0 in my.toml, line 4: expected at least 1"),
    (
        "[cluster]\nnodes = 3\n",
        "got the table [cluster] alone in my.toml: expected how fast its nodes are, too; add a line such as "
        'profile = "cpu-1g" above it (a preset or a TOML file)',
    ),
]
ROOM = [
    (
        "gather",
        "needs 58.5 MiB (61341696 bytes) more; expected at least 62390272 bytes (59.5 MiB) per node; give "
        "more, use more "
        "nodes or a shorter prompt",
    ),
    (
        "mars",
        "needs 48.5 MiB (50855936 bytes) more; expected at least 51904512 bytes (49.5 MiB) per node; give "
        "more, use more "
        "nodes or a shorter prompt",
    ),
]


@pytest.mark.parametrize(("old", "new", "says"), SIM)
def test_each_mistake_is_one_line_with_what_was_expected(
    old: str, new: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert old in CASE
    Path("my.toml").write_text(CASE.replace(old, new))
    assert line(capsys, "sim", "run", "my.toml") == f"error: {says}"


@pytest.mark.parametrize(("text", "says"), FILES)
def test_mistakes_in_the_file_of_a_cluster(
    text: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(text)
    assert line(capsys, *PLAN, "--cluster", "my.toml") == f"error: {says}"


@pytest.mark.parametrize(("policy", "says"), ROOM)
def test_a_node_without_room_for_its_own_share_is_told_how_much_is_missing(
    policy: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = line(capsys, *PLAN, "--workers", "4", "--chunk-tokens", "2k", "--kv-memory", "1MiB", "--policy", policy)
    assert found == f"error: got a KV budget of 1 MiB on node 0: policy {policy} {says}"


def test_a_file_with_a_cluster_and_a_profile_plans_like_a_measured_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nodes, budgets, topology and rates come from it; `mcf sim run` takes the same file as a profile."""
    file = tmp_path / "lab.toml"
    file.write_text(CLUSTER + '[cluster.node]\nkv_memory = "1GiB"\n[cluster.link]\nrate = "100Mbit/s"\n')
    times = {}
    for name in (str(file), "cpu-1g"):
        assert (
            main(
                [
                    *PLAN,
                    "--cluster",
                    name,
                    "--policy",
                    "ring",
                    "--json",
                    *(("--workers", "3") if name == "cpu-1g" else ()),
                ]
            )
            == 0
        )
        times[name] = json.loads(capsys.readouterr().out)
    mine, usual = times[str(file)], times["cpu-1g"]
    assert (mine["workers"], mine["kv_budget_bytes"], mine["prediction"]["profile"]) == (3, 1 << 30, "lab")
    assert mine["prediction"]["bounds"]["inbound_s"] > 5 * usual["prediction"]["bounds"]["inbound_s"]
    assert mine["prediction"]["ttft_s"] > usual["prediction"]["ttft_s"]
    (tmp_path / "my.toml").write_text(CASE.replace("nodes = 4\n", "").replace('"cpu-1g"', '"lab.toml"'))
    assert main(["sim", "run", str(tmp_path / "my.toml"), "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["nodes"], row["kv_memory_bytes"], row["profile"]) == (3, 1 << 30, "lab")
    assert row["bound_s"] == max(row["bounds"].values()) <= row["ttft_s"]


def test_a_run_takes_speeds_from_a_cluster_of_as_many_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused before a model is looked for."""
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(CLUSTER)
    run = ["run", "no-such-model", "--prompt", "x", "--policy", "mars", "--cluster"]
    for workers in ([], ["--workers", "2"]):  # two are what is taken where none are given
        assert line(capsys, *run, "my.toml", *workers) == (
            "error: got 2 workers, and 3 nodes in the profile 'my': expected as many: --workers 3"
        )
    assert line(capsys, *run, "cpu-1") == (
        f"error: unknown profile 'cpu-1': did you mean 'cpu-1g'? known are {PRESETS}"
    )
    found = speeds_of(load_profile("my.toml"), 3)
    assert (load_profile("cpu-1g").flops_s, load_profile("cpu-1g").link_bytes_s) == (found.P, found.BW)
