"""Profiles: presets with a source beside each number; a mistake in a file is one clear line."""

from pathlib import Path

import pytest

from mcf.errors import UnknownNameError, UserError
from mcf.sim import NAMES, load_profile
from mcf.sim.profile import NUMBERS, PACKETS, TILES, parse_profile

GOOD = 'name = "mine"\nphysical = true\n' + "".join(f'[{key}]\nvalue = 2.0\nsource = "mine"\n' for key in NUMBERS)

GOOD_NUMBER = '[flops_s]\nvalue = 7.0\nsource = "here"\n'


OF_HARDWARE = (*PACKETS, *TILES, "attention_flops_s")


def refused(text: str, file: str, says: str) -> None:
    """A mistake is one line that says so."""
    with pytest.raises(UserError, match=says) as caught:
        parse_profile(text, file)
    assert "\n" not in str(caught.value)


def test_the_presets() -> None:
    assert NAMES == ("cpu-1g", "cpu-50m", "gpu-100g", "gpu-10g", "kr260-physical", "kr260-rtl", "paper16k-fitted")


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_preset_has_a_source(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert set(profile.sources) == {*NUMBERS, *(OF_HARDWARE if name == "kr260-rtl" else ())}
    assert all(source.strip() for source in profile.sources.values())
    assert profile.physical == (name not in ("paper16k-fitted", "kr260-rtl"))


def test_the_board_has_the_published_numbers() -> None:
    board = load_profile("kr260-physical")
    assert (board.flops_s, board.memory_bytes_s, board.memory_bytes) == (100e9, 19.2e9, 4e9)
    assert board.link_bytes_s == 10e9 / 8


def test_the_fitted_profile_says_what_it_is() -> None:
    fitted = load_profile("paper16k-fitted")
    assert "fitted to the twelve times of Table 1 with this simulator" in fitted.note
    assert (fitted.flops_s, fitted.link_bytes_s, fitted.link_latency_s) == (24e12, 0.385e9, 0.563e-3)


def test_an_unknown_preset_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gpu-10g'"):
        load_profile("gpu-10gb")


LAB = """profile = "cpu-1g"

[cluster]
topology = "mesh:2x2"
nodes = ["a", "b", "c", "d"]

[cluster.node]
kv_memory = "2GiB"

[cluster.link]
rate = "100Mbit/s"
latency = "1ms"

[[cluster.links]]
from = "a"
to = "b"
rate = "10Mbit/s"
one_way = true
"""


def test_a_cluster_and_the_profile_of_its_nodes_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "lab.toml").write_text(LAB)
    found, usual = load_profile(tmp_path / "lab.toml"), load_profile("cpu-1g")
    assert (found.name, found.flops_s, found.sources) == ("lab", usual.flops_s, usual.sources)
    assert (found.topology, found.num_nodes, found.nodes[2].name) == ("mesh:2x2", 4, "c")
    assert {node.kv_budget_bytes for node in found.nodes} == {2 << 30}
    assert (found.link_bytes_s, found.link_latency_s) == (12.5e6, 1e-3)
    assert (found.link_rate(0, 1), found.link_rate(1, 0), found.link_latency(0, 1)) == (1.25e6, 12.5e6, 1e-3)
    (tmp_path / "fast.toml").write_text(LAB.replace('"cpu-1g"', '"base.toml"') + GOOD_NUMBER)
    (tmp_path / "base.toml").write_text(GOOD)
    mixed = load_profile(tmp_path / "fast.toml")
    assert (mixed.flops_s, mixed.memory_bytes_s, mixed.sources["flops_s"]) == (7.0, 2.0, "here")


def test_ports_of_a_switch_have_rates_and_latencies() -> None:
    text = 'profile = "cpu-1g"\n[cluster]\nnodes = 3\n[[cluster.links]]\nfrom = 1\nto = "switch"\n'
    found = parse_profile(text + 'rate = "8Mbit/s"\nlatency = "2ms"\none_way = true', "p.toml")
    assert (found.port_rate(1), found.port_rate(0)) == (1e6, load_profile("cpu-1g").link_bytes_s)
    assert found.link_latency(1, 0) == found.link_latency(1, 2) == 2e-3 > found.link_latency(0, 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cluster]\nnodes = 2", r"the table \[cluster\] alone in c\.toml: expected how fast .* profile = \"cpu-1g\""),
        ('profile = "cpu1g"\n[cluster]\nnodes = 2', r"did you mean 'cpu-1g'.*key profile in c\.toml, line 1"),
        ('profile = "no.toml"', r"no\.toml.*expected a TOML file.*key profile in c\.toml, line 1"),
        (
            'profile = "cpu-1g"\nnum_nodes = 3\n[cluster]\nnodes = 2',
            r"num_nodes = 3 in c\.toml, line 2: expected it in",
        ),
        (
            'profile = "cpu-1g"\n[cluster]\nnods = 2',
            r"unknown key 'cluster\.nods' in c\.toml, line 3: .*'cluster\.nodes'",
        ),
        ("profile = 3", r"got profile = 3 in c\.toml, line 1: expected the name of a preset or a TOML file"),
    ],
)
def test_mistakes_in_a_cluster_file_are_named(text: str, says: str) -> None:
    refused(text, "c.toml", says)


def test_a_profile_cannot_name_one_that_names_another(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('profile = "a.toml"')
    with pytest.raises(UserError, match=r"a\.toml, line 1: expected numbers of its own.*key profile in .*a\.toml"):
        load_profile(tmp_path / "a.toml")


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD)
    assert load_profile(path).flops_s == 2.0
    with pytest.raises(UserError, match=r"no\.toml.*expected a TOML file"):
        load_profile(tmp_path / "no.toml")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("physical", "phisical", r"unknown key 'phisical' in f\.toml, line 2: did you mean 'physical'"),
        (
            "[link_bytes_s]\nvalue",
            "[link_bytes_s]\nvalu",
            r"unknown key 'link_bytes_s\.valu' in f\.toml, line \d+.*'link_bytes_s\.va",
        ),
        ("[flops_s]", "[flop_s]", r"unknown key 'flop_s' in f\.toml, line 3: did you mean 'flops_s'"),
        ("physical = true\n", "", r"missing key 'physical' in f\.toml"),
        ("physical = true", "physical = 1", r"got physical = 1 in f\.toml, line 2: expected true or false"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = 0", "flops_s = 0 .*more than 0"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = true", r"flops_s\.value = True"),
        ('[flops_s]\nvalue = 2.0\nsource = "mine"', "[flops_s]\nvalue = 2.0", r"missing key 'flops_s\.source'"),
        ("[link_latency_s]\nvalue = 2.0", "[link_latency_s]\nvalue = -1.0", "link_latency_s = -1.0 .*at least 0"),
        ("[flops_s]\nvalue = 2.0", "[flops_s]\nvalue = inf", "flops_s = inf"),
        ("physical = true", "physical = ", r"cannot read f\.toml as TOML.*line 2"),
    ],
)
def test_a_mistake_is_one_clear_line(old: str, new: str, says: str) -> None:
    assert old in GOOD
    refused(GOOD.replace(old, new), "f.toml", says)


CLUSTER = (
    GOOD
    + """
[[nodes]]
name = "fast"
source = "mine"
flops_s = 8.0
kv_budget_bytes = 1024

[[nodes]]
source = "mine"
link_bytes_s = 1.0
[[nodes]]
source = "mine"
memory_bytes_s = 5.0

[[links]]
between = [0, 2]
source = "mine"
link_bytes_s = 0.5

[[links]]
from = 0
to = 1
source = "mine"
link_latency_s = 0.25
"""
)


def test_a_cluster_of_unequal_nodes_and_links() -> None:
    found = parse_profile(CLUSTER, "f.toml")
    assert found.num_nodes == 3
    assert [node.name for node in found.nodes] == ["fast", "", ""]
    assert [node.kv_budget_bytes for node in found.nodes] == [1024, None, None]
    assert found.by_node("flops_s", 3).tolist() == [8.0, 2.0, 2.0]
    assert found.by_node("memory_bytes_s", 3).tolist() == [2.0, 2.0, 5.0]
    assert [found.link_rate(*edge) for edge in ((0, 2), (2, 0), (0, 1), (1, 0))] == [0.5, 0.5, 1.0, 1.0]
    assert [found.link_latency(*edge) for edge in ((0, 1), (1, 0))] == [0.25, 2.0]
    best = found.best()
    assert (best.flops_s, best.memory_bytes_s, best.link_bytes_s, best.link_latency_s) == (8.0, 5.0, 2.0, 0.25)
    with pytest.raises(UserError, match="has 3 nodes, the schedule 2"):
        found.by_node("flops_s", 2)


def test_equal_nodes_in_short() -> None:
    found = parse_profile("num_nodes = 4\n" + GOOD, "f.toml")
    assert found.num_nodes == 4
    assert found.by_node("flops_s", 4).tolist() == [2.0] * 4
    assert parse_profile(GOOD, "f.toml").num_nodes is None


def test_bfloat16_has_numbers_of_its_own() -> None:
    text = GOOD + '[bf16_flops_s]\nvalue = 9.0\nsource = "mine"\n[[nodes]]\nsource = "mine"\nbf16_flops_s = 7.0\n'
    found = parse_profile(text, "f.toml")
    assert found.by_node("flops_s", 1).tolist() == [2.0]
    assert found.for_dtype("bfloat16").by_node("flops_s", 1).tolist() == [7.0]
    assert found.for_dtype("bfloat16").flops_s == 9.0
    assert found.for_dtype("float32") is found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "flops_s = 8.0",
            "flop_s = 8.0",
            r"unknown key 'nodes\.flop_s' in f\.toml, line 28: did you mean 'nodes\.flops_s'",
        ),
        (
            "between = [0, 2]",
            "between = [0, 3]",
            r"links\.between = \[0, 3\] in f\.toml, line \d+: expected two different",
        ),
        ("between = [0, 2]", "between = [0, 1]", r"link 0 to 1 stands twice in f\.toml, line \d+"),
        ("from = 0\nto", "to", r"missing key 'links\.from'"),
        ("kv_budget_bytes = 1024", "kv_budget_bytes = 0", r"kv_budget_bytes = 0 .*at least 1"),
        ('name = "fast"\nsource = "mine"', 'name = "fast"', r"missing key 'nodes\.source' in f\.toml"),
        ("memory_bytes_s = 5.0", "memory_bytes_s = -5.0", r"memory_bytes_s = -5\.0 .*more than 0 \(f\.toml\)"),
        ('name = "mine"', 'name = "mine"\nnum_nodes = 2', r"num_nodes = 2 in f\.toml, line 2: expected 3"),
    ],
)
def test_a_mistake_about_a_cluster_is_one_clear_line(old: str, new: str, says: str) -> None:
    assert old in CLUSTER
    refused(CLUSTER.replace(old, new, 1), "f.toml", says)
