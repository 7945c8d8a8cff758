"""A TOML file -> cases: sweeps, defaults, and refusals by file, line and nearest key."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mcf.errors import InfeasibleError, UserError
from mcf.model import named_shape
from mcf.policies import NAMES
from mcf.sim import load_profile
from mcf.study import Case, Lab
from mcf.study.experiment import load_experiment, parse_experiment
from simulated import tiny_shape

PLAIN = """nodes = 2
prompt_tokens = 600
profile = "cpu-1g"

[model]
name = "smollm2-135m"
"""
INLINE = """nodes = 2
prompt_tokens = "1k"
policies = "gather"
[profile]
flops_s = 1e11
memory_bytes_s = 1e10
memory_bytes = 1e9
link_bytes_s = 1e8
link_latency_s = 0
step_overhead_s = 0
weight_bytes = 1
[model]
num_layers = 4
num_q_heads = 4
num_kv_heads = 2
head_dim = 8
hidden_size = 32
intermediate_size = 64
vocab_size = 100
kv_bytes = 0.5
"""


def read(text: str) -> list[Case]:
    return list(parse_experiment(text, "my.toml", read_shape=lambda folder: tiny_shape(4)).cases)


def refusal(text: str) -> str:
    with pytest.raises(UserError) as caught:
        read(text)
    return str(caught.value)


# --- what a file means ---


def test_defaults_are_all_policies_without_a_budget() -> None:
    cases = read(PLAIN)
    assert tuple(case.policy for case in cases) == NAMES
    assert {(c.kv_memory_bytes, c.cluster.topology.name, c.chunk_tokens, c.layers) for c in cases} == {
        (None, "switch", 600, 4)
    }


def test_lists_are_swept_over_in_all_combinations_without_repeats() -> None:
    text = PLAIN.replace(
        "nodes = 2", 'nodes = [2, 4, 2]\npolicies = ["ring", "gather"]\nmemory = ["none", "2x", "1MiB"]'
    )
    cases = read(text)
    assert len(cases) == len(set(cases)) == 2 * 2 * 3
    assert [case.policy for case in cases[:6]] == ["ring"] * 6
    shares = {
        case.cluster.num_nodes: case.kv_memory_bytes for case in cases if case.kv_memory_bytes not in (None, 2**20)
    }
    shape = named_shape("smollm2-135m", dtype="bfloat16")
    assert shares == {n: 2 * (600 // n) * shape.kv_token_bytes for n in (2, 4)}


def test_chunks_count_over_all_nodes_or_per_node() -> None:
    per_node = read(PLAIN.replace("nodes = 2", "nodes = [2, 4]\npolicies = 'ring'\nnode_tokens = 64"))
    assert [case.chunk_tokens for case in per_node] == [128, 256]
    total = read(PLAIN.replace("nodes = 2", "nodes = [2, 4]\npolicies = 'ring'\nchunk_tokens = 64"))
    assert [case.chunk_tokens for case in total] == [64, 64]


def test_a_profile_and_a_model_of_numbers() -> None:
    [case] = read(INLINE)
    assert (case.profile.name, case.profile.flops_s, case.shape.num_layers) == ("inline", 1e11, 4)
    assert case.shape.kv_token_bytes == 4 * 2 * 2 * 8 // 2
    assert Lab().row(case).ttft_s is not None


def test_a_cluster_of_ones_own_a_folder_and_a_file() -> None:
    text = (
        'policies = "ring"\nprompt_tokens = 64\nprofile = "gpu-10g"\n[cluster]\ntopology = "mesh"\nnodes = 4\n'
        '[cluster.node]\nkv_memory = "1MiB"\n[model]\nfolder = "somewhere"\n'
    )
    [case] = read(text)
    assert (case.cluster.topology.name, case.kv_memory_bytes, case.shape) == ("mesh", 2**20, tiny_shape(4))


def test_another_profile_may_stand_in(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(PLAIN)
    found = load_experiment(str(path), read_shape=lambda folder: tiny_shape(), profile="gpu-10g")
    assert {case.profile for case in found.cases} == {load_profile("gpu-10g")}
    assert found.name == "my"


def test_profiles_are_found_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(
        Path("src/mcf/sim/profiles/cpu-1g.toml").read_text() if Path("src/mcf/sim/profiles").exists() else ""
    )
    path = tmp_path / "my.toml"
    path.write_text(PLAIN.replace("cpu-1g", "own.toml"))
    found = load_experiment(str(path), read_shape=lambda folder: tiny_shape())
    assert {case.profile.name for case in found.cases} == {"cpu-1g"}


# --- refusals ---


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("nodes", "nods", "unknown key 'nods' in my.toml, line 1: did you mean 'nodes'?"),
        ("profile =", "profil =", "unknown key 'profil' in my.toml, line 3: did you mean 'profile'?"),
        ('name = "smollm2', 'nam = "smollm2', "got nothing in my.toml, line 5: expected one of name"),
        ("cpu-1g", "cpu-2g", "unknown profile 'cpu-2g': did you mean 'cpu-1g'?"),
        ("smollm2-135m", "smollm2-136m", "did you mean 'smollm2-135m'?"),
        ("nodes = 2", 'nodes = 2\npolicies = ["rign"]', "unknown policy 'rign': did you mean 'ring'? known are"),
        ("nodes = 2", 'nodes = 2\ntopology = "mehs"', "unknown topology 'mehs'"),
        ("nodes = 2", "nodes = 0", "got nodes = 0 in my.toml, line 1: expected 1 to 1024"),
        ("nodes = 2", "nodes = [2, -1]", "expected 1 to 1024"),
        ("nodes = 2", "nodes = []", "expected a number of nodes, or a list of them"),
        ("nodes = 2", "nodes = 2.5", "expected a number of nodes"),
        ("600", "0", "(my.toml, line 2)"),
        ("600", '"8 parsecs"', "(my.toml, line 2)"),
        ("nodes = 2", "nodes = 2\nmemory = '-1x'", "a multiple above 0 of a node's own share (my.toml, line 2)"),
        ("nodes = 2", "nodes = 2\nmemory = '0x'", "a multiple above 0"),
        ("nodes = 2", "nodes = 2\nmemory = 0", "(my.toml, line 2)"),
        ("nodes = 2", "nodes = 2\nlayers = 2", "got layers = 2 in my.toml, line 2: expected at least 4, or 'all'"),
        ("nodes = 2", "nodes = 2\nspread = -0.1", "expected a number of at least 0"),
        ("nodes = 2", "nodes = 2\nalpha = -1", "expected a number of at least 0, or inf"),
        ("nodes = 2", "nodes = 2\nstream_slots = 0", "expected at least 1"),
        ("nodes = 2", "nodes = 2\nchunk_tokens = 9\nnode_tokens = 9", "either chunk_tokens or node_tokens"),
        ("nodes = 2", "nodes = 2\nseeds = ['a']", "expected a whole number, or a list of them"),
        ("nodes = 2\n", "", "missing key 'nodes' in my.toml"),
        ("[model]", "[cluster]\nnodes = 2\n[model]", "expected it in the table [cluster], which is there too"),
        ("prompt_tokens = 600", "prompt_tokens 600", "cannot read my.toml as TOML"),
        ('\n[model]\nname = "smollm2-135m"\n', "", "missing table [model] in my.toml"),
    ],
)
def test_refusals_name_the_file_the_line_and_what_is_near(old: str, new: str, words: str) -> None:
    assert old in PLAIN
    assert words in refusal(PLAIN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("flops_s = 1e11", "flops_s = 0", "got profile.flops_s = 0 in my.toml, line 5: expected a number above 0"),
        ("link_latency_s = 0", "link_latency_s = -1", "expected a number of at least 0"),
        (
            "flops_s = 1e11",
            "flops = 1e11",
            "unknown key 'profile.flops' in my.toml, line 5: did you mean 'profile.flops_s'?",
        ),
        ("head_dim = 8\n", "", "missing key 'model.head_dim'"),
        ("num_layers = 4", "num_layers = 0", "expected a whole number of at least 1"),
        ("num_q_heads = 4", "num_q_heads = 3", "expected a multiple"),
        ("kv_bytes = 0.5", "kv_bytes = 0.3", "kv_bytes"),
    ],
)
def test_refusals_inside_tables(old: str, new: str, words: str) -> None:
    assert old in INLINE
    assert words in refusal(INLINE.replace(old, new, 1))


def test_a_sweep_that_is_too_large_is_refused() -> None:
    many = ", ".join(map(str, range(1, 1100)))
    assert "expected at most 10000" in refusal(
        PLAIN.replace("nodes = 2", f"nodes = 2\nseeds = [{many}]\nmemory = ['2x', '3x']")
    )


# --- the laboratory ---


def case(**changes: object) -> Case:
    [found] = read(INLINE)
    return replace(found, **changes)


def test_what_cannot_run_is_a_row_that_says_why() -> None:
    pd = read(INLINE.replace("nodes = 2", "nodes = 1").replace("gather", "pd"))[0]
    assert (Lab().row(pd).why or "").startswith("got 1 node for policy pd: expected at least 2, one to prefill")
    tight = read(INLINE.replace("nodes = 2", "nodes = 2\nmemory = '1x'"))[0]
    row = Lab().row(tight)
    assert row.ttft_s is None
    assert "policy gather needs" in (row.why or "")
    with pytest.raises(InfeasibleError):
        Lab().run(tight)


def test_a_case_is_run_once_and_its_plan_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    from mcf.study import lab as module

    planned: list[str] = []
    real = module.plan
    monkeypatch.setattr(module, "plan", lambda name, request: planned.append(name) or real(name, request))
    found = Lab()
    first = found.run(case())
    assert found.run(case()) is first
    found.run(case(profile=load_profile("gpu-10g")))
    assert planned == ["gather"]
    found.run(case(prompt_tokens=512))
    assert planned == ["gather", "gather"]


def test_slower_nodes_take_longer_by_seed_and_never_beat_a_bound() -> None:
    found = Lab()
    took = {seed: found.row(case(spread=0.5, seed=seed)) for seed in (1, 2, 3)}
    plain = found.row(case())
    assert len({row.ttft_s for row in took.values()}) == 3
    assert all((row.ttft_s or 0) > (plain.ttft_s or math.inf) for row in took.values())
    assert {row.bound_s for row in took.values()} == {plain.bound_s}
    assert found.row(case(spread=0.5, seed=2)) == took[2]


def test_extrapolated_and_full_simulations_have_the_same_bytes() -> None:
    deeper = replace(case().shape, num_layers=6)
    few, every = Lab().row(case(layers=4, shape=deeper)), Lab().row(case(layers=None, shape=deeper))
    assert (few.simulated_layers, every.simulated_layers) == (4, 6)
    assert few.traffic_bytes == every.traffic_bytes
    assert few.peak_kv_bytes == every.peak_kv_bytes
