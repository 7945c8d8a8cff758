"""Policies and topologies of other packages: found by name, judged like ours, named when they are wrong."""

import json
from pathlib import Path

import pytest

from installed import install
from mcf import policies
from mcf.cli import main
from mcf.cluster import Topology, facts, parse_cluster
from mcf.errors import InfeasibleError, LawError, PlugInError, UnknownNameError
from mcf.policies import least_budget, plan
from mcf.testing import check_policy, check_topology
from mcf.testing.policies import policy_requests
from pages import DOCS, blocks
from plans import request, with_budgets

PAGE = [block.text for block in blocks(DOCS / "adding-a-policy.md") if block.language == "python"]
KEEP_FIRST = PAGE[0]
CUBE = [block.text for block in blocks(DOCS / "adding-a-topology.md") if block.language == "python"]
TABLES = [block.text for block in blocks(DOCS / "adding-a-topology.md") if block.language == "toml"]
PLAN = ("plan", "qwen2.5-1.5b", "--prompt-tokens", "1k", "--workers", "2", "--chunk-tokens", "256")


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def put(source: str, name: str = "theirs") -> None:
        install(monkeypatch, tmp_path, f"{name}_package", source, "mcf.policies", {name: f"{name}_package:plan"})

    return put


@pytest.fixture
def topology(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def put(source: str, name: str) -> None:
        install(monkeypatch, tmp_path, f"{name}_package", source, "mcf.topologies", {name: f"{name}_package:links"})

    return put


def error(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    assert main(list(args)) == 2
    out, err = capsys.readouterr()
    assert not out
    return err.splitlines()


# --- policies ---


def test_a_plug_in_is_a_policy_like_ours(policy, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy(KEEP_FIRST, "keep-first".replace("-", "_"))
    policies.check_name("keep_first")
    assert main([*PLAN, "--policy", "keep_first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == "keep-first"
    own = tmp_path / "own.toml"
    own.write_text(
        'nodes = 2\nprompt_tokens = 600\nprofile = "cpu-1g"\npolicies = ["gather", "keep_first"]\n'
        '[model]\nname = "smollm2-135m"\n',
        encoding="utf-8",
    )
    assert main(["sim", "run", str(own), "--json"]) == 0
    assert [row["policy"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["gather", "keep_first"]


def test_a_plug_in_is_judged_with_budgets_too(policy) -> None:
    policy(KEEP_FIRST)
    asked = [one for one in policy_requests(max_nodes=2) if one.stream_slots > 1]
    assert check_policy(lambda one: plan("theirs", one), asked) > len(asked)
    drawn = request(4, 512, 128)
    least = least_budget("theirs", drawn)
    assert plan("theirs", with_budgets(drawn, least)).meta.budgets == (least,) * 4
    with pytest.raises(InfeasibleError, match="expected at least"):
        plan("theirs", with_budgets(drawn, least // 2))


def test_a_broken_law_is_named_with_the_plug_in_and_the_grid(policy, capsys: pytest.CaptureFixture[str]) -> None:
    policy(KEEP_FIRST.replace("(node, *others)]", "(node, *others[1:])]"))
    lines = error(capsys, *PLAN, "--policy", "theirs")
    assert lines[0].startswith("error: V7 broken")
    assert "policy plug-in 'theirs'" in lines[0]
    assert lines[1].startswith("V7: each query token attends each token")
    assert any(line.lstrip().startswith("pos") and "node 0" in line for line in lines)
    with pytest.raises(LawError) as caught:
        plan("theirs", request(2, 100, 50))
    assert caught.value.law == "V7"


def test_a_broken_law_ends_a_study_too(policy, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    policy(KEEP_FIRST.replace("(node, *others)]", "(node, *others[1:])]"))
    own = tmp_path / "own.toml"
    own.write_text(
        'nodes = 2\nprompt_tokens = 600\nprofile = "cpu-1g"\npolicies = "theirs"\n[model]\nname = "smollm2-135m"\n',
        encoding="utf-8",
    )
    assert "V7 broken" in (line := error(capsys, "sim", "run", str(own))[0])
    assert "policy plug-in 'theirs'" in line


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import no_such_module", "'theirs' of package theirs_package cannot be loaded from 'theirs_package:plan' "
         "(ModuleNotFoundError: No module named 'no_such_module'): repair or uninstall"),
        ("plan = 1 / 0", "(ZeroDivisionError: division by zero)"),
        ("def other(): ...", "AttributeError"),
        ("plan = 3", "'theirs' of package theirs_package is int 'theirs_package:plan': expected a function"),
        ("def plan(request):\n    raise KeyError('x\\ny')", "policy plug-in 'theirs' failed (KeyError: 'x"),
        ("def plan(request):\n    raise SystemExit(3)", "policy plug-in 'theirs' failed (SystemExit: 3)"),
        ("raise SystemExit", "cannot be loaded from 'theirs_package:plan' (SystemExit"),
        ("def plan(request):\n    return None", "policy plug-in 'theirs' returned NoneType: expected a Schedule"),
        ("from mcf.policies import plan as p\nfrom dataclasses import replace\n"
         "def plan(request):\n    return p('gather', replace(request, prompt_tokens=7))",
         "policy plug-in 'theirs' planned prompt_tokens = 7: expected 1024, as asked"),
        ("from mcf.schedule import Builder, cut, head_tail\n"
         "def plan(request):\n    pieces = cut(8, 8, 2, head_tail)\n"
         "    return Builder(request.meta('x'), pieces, {(0, 0, 0): 99}).build()",
         "policy plug-in 'theirs' cannot build its schedule: an owner is not one of the 2 nodes"),
        ("from mcf.schedule import Builder, cut, head_tail\n"
         "def plan(request):\n    pieces = cut(8, 8, 2, head_tail)\n"
         "    return Builder(request.meta('x'), pieces).build()",
         "policy plug-in 'theirs'"),
    ],
)  # fmt: skip
def test_a_plug_in_that_fails_is_named_in_one_line(
    policy, capsys: pytest.CaptureFixture[str], source: str, says: str
) -> None:
    policy(source)
    lines = error(capsys, *PLAN, "--policy", "theirs")
    assert says in lines[0]
    assert len(lines) == 1 or "broken" in lines[0]


def test_two_packages_that_claim_one_name(policy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    policy(KEEP_FIRST)
    other = tmp_path / "other"
    other.mkdir()
    install(monkeypatch, other, "other", KEEP_FIRST, "mcf.policies", {"theirs": "other:plan"})
    with pytest.raises(PlugInError, match=r"'theirs' is claimed by package other \(other:plan\) and package theirs_"):
        plan("theirs", request())


def test_a_plug_in_with_a_name_of_ours_is_refused(policy, topology, capsys: pytest.CaptureFixture[str]) -> None:
    policy("1 / 0", "gather")
    says = "error: policy plug-in 'gather' of package gather_package has the name of a policy of MCF: expected another"
    assert error(capsys, *PLAN, "--policy", "gather")[0].startswith(says)
    policies.check_name("ring")
    topology("1 / 0", "torus")
    with pytest.raises(PlugInError, match="topology plug-in 'torus' of package torus_package has the name of a top"):
        Topology.parse("torus:11x1", 11)  # shapes are kept: no other test has this one


def test_unknown_names_suggest_plug_ins(policy) -> None:
    policy(KEEP_FIRST, "keep_first")
    with pytest.raises(UnknownNameError, match=r"did you mean 'keep_first'\?"):
        policies.check_name("keep_frist")


# --- topologies ---


def test_the_page_goes_from_an_empty_file_to_a_topology(topology, capsys: pytest.CaptureFixture[str]) -> None:
    topology(CUBE[0], "hypercube")
    exec(compile(CUBE[1], "docs/adding-a-topology.md", "exec"), {})
    out = capsys.readouterr().out
    assert out == f"{facts(Topology.parse('torus:4x4', 16))}\n"  # the hypercube of 16 nodes is the torus of 4 x 4
    cluster = parse_cluster(TABLES[1], "lab.toml")
    assert cluster.topology.name == "hypercube"
    assert cluster.link_of(0, 1).rate_bits_s == 1e9
    for name in policies.NAMES:
        plan(name, request(8, 300, 100, topology="hypercube"))
    check_policy(lambda one: plan("gather", one), [request(4, 23, 8, topology="hypercube", max_new_tokens=2)])


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def links(n): return [(0, 1)]", "topology plug-in 'bad.': got a graph without a way from node 0 to node 2"),
        ("def links(n): return [(0, 0)]", "topology plug-in 'bad.': got a link from node 0 to itself"),
        ("def links(n): return [(0, 9)]", "expected nodes from 0 to 2"),
        ("def links(n): return 3", "topology plug-in 'bad.' failed for 3 nodes .TypeError"),
        ("def links(n): raise ValueError('no')", "topology plug-in 'bad.' failed for 3 nodes .ValueError: no"),
        ("import nowhere_at_all", "topology plug-in 'bad.' of package bad._package cannot be loaded"),
    ],
)
def test_what_is_no_topology_is_named(topology, request: pytest.FixtureRequest, source: str, says: str) -> None:
    name = f"bad{request.node.callspec.indices['source']}"
    topology(source, name)
    with pytest.raises(PlugInError, match=says) as caught:
        check_topology(name, least_nodes=3)
    assert "\n" not in str(caught.value)
