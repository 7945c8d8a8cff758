"""The table `[cluster]`: one format, and mistakes named by file, line and nearest key."""

from pathlib import Path

import pytest

from mcf.cluster import Cluster, LinkSpec, load_cluster, parse_cluster
from mcf.errors import UserError

WHOLE = """
[cluster]
topology = "graph"
nodes = ["left", "middle", "right"]

[cluster.node]
kv_memory = "1KiB"

[cluster.link]
rate = "1Gbit/s"
latency = "50us"

[[cluster.links]]
from = "left"
to = 1

[[cluster.links]]
from = "middle"
to = "right"
rate = "10Mbit/s"
one_way = true

[[cluster.links]]
from = 2
to = 0
one_way = true
"""


def test_a_whole_cluster(tmp_path: Path) -> None:
    file = tmp_path / "lab.toml"
    file.write_text(WHOLE, encoding="utf-8")
    cluster = load_cluster(file)
    assert cluster.topology.name == "graph:0-1,1>2,2>0"
    assert cluster.kv_budgets == (1024,) * 3
    assert [node.name for node in cluster.nodes] == ["left", "middle", "right"]
    assert cluster.link_of(0, 1) == LinkSpec(rate_bits_s=1e9, latency_s=50e-6)
    assert cluster.link_of(1, 2) == LinkSpec(rate_bits_s=1e7, latency_s=50e-6)


def test_short_forms() -> None:
    assert parse_cluster('[cluster]\nnodes = 4\ntopology = "mesh:2x2"', "c") == Cluster.uniform("mesh:2x2", 4)
    assert parse_cluster("[cluster]\nnodes = 2", "c") == Cluster.uniform("switch", 2)
    some = '[[cluster.nodes]]\nkv_memory = "1KiB"\n[[cluster.nodes]]\nname = "b"\n[cluster.node]\nkv_memory = 2048\n'
    assert parse_cluster(some, "c").kv_budgets == (1024, 2048)
    port = '[cluster]\nnodes = 2\n[[cluster.links]]\nfrom = 1\nto = "switch"\nrate = "1Gbps"\none_way = true\n'
    assert dict(parse_cluster(port, "c").links) == {(1, -1): LinkSpec(rate_bits_s=1e9)}
    chain = '[cluster]\ntopology = "tree"\nnodes = 3\nlinks = [{from = 0, to = 1}, {from = 1, to = 2}]\n'
    assert parse_cluster(chain, "c").topology.name == "tree:0-1,1-2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[cluster]\nnods = 3", r"unknown key 'cluster.nods' in c.toml, line 2: did you mean 'cluster.nodes'\?"),
        ("[cluster]\nnodes = 3\n[cluster.link]\nratte = 1", "'cluster.link.ratte' in c.toml, line 4: did you mean"),
        ("nodes = 3", r"unknown key 'nodes' in c.toml, line 1: did you mean 'cluster'\?"),
        ("", r"missing table \[cluster\] in c.toml"),
        ("[cluster]\n", "missing key 'cluster.nodes' in c.toml, line 1"),
        ("[cluster]\nnodes = 0", "cluster.nodes = 0 in c.toml, line 2: expected at least 1"),
        ("[cluster]\nnodes = -2", "expected at least 1"),
        ("[cluster]\nnodes = true", "expected how many nodes"),
        ("[cluster]\nnodes = []", "expected at least one node"),
        ('[cluster]\nnodes = ["a", "a"]', "no name twice"),
        ('[cluster]\nnodes = 3\ntopology = "rnig"', r"did you mean 'ring'\?.*\(c.toml, line 3\)"),
        ('[cluster]\nnodes = 3\ntopology = "mesh:2x2"', r"expected 4 nodes, or other sizes \(c.toml, line 3\)"),
        ("[cluster]\nnodes = 2\n[[cluster.links]]\nfrom = 0\nto = 0", "to = 0 in c.toml, line 5: expected two diff"),
        ("[cluster]\nnodes = 2\n[[cluster.links]]\nfrom = 0\nto = 5", "in c.toml, line 5: expected a node from 0 to 1"),
        ('[cluster]\nnodes = ["a", "b"]\n[[cluster.links]]\nfrom = "a"\nto = "c"', "line 5: expected one of a, b"),
        ("[cluster]\nnodes = 2\n[[cluster.links]]\nfrom = 0", "missing key 'cluster.links.to' in c.toml, line 3"),
        ('[cluster]\nnodes = 2\n[cluster.link]\nrate = "-1Gbit/s"', "it is negative.*key rate in c.toml, line 4"),
        ("[cluster]\nnodes = 2\n[cluster.link]\nrate = 0", "key rate in c.toml, line 4"),
        ('[cluster]\nnodes = 2\n[cluster.link]\nlatency = "3 parsecs"', "key latency in c.toml, line 4"),
        ('[cluster]\nnodes = 2\n[cluster.node]\nkv_memory = "0"', "key kv_memory in c.toml, line 4"),
        ("[cluster\n", r"cannot read c.toml as TOML .*line 1"),
        (WHOLE.replace('"graph"', '"tree"'), r"closes a cycle.*\(c.toml, line 3\)"),
        (WHOLE.replace("from = 2\nto = 0", "from = 0\nto = 1"), "link 0>1 stands twice in c.toml, line 2"),
        (WHOLE.replace('to = 1\n', 'to = 1\nfrm = 2\n'), "unknown key 'cluster.links.frm' in c.toml, line 16"),
        ('[cluster]\nnodes = 3\ntopology = "ring"\n[[cluster.links]]\nfrom = 0\nto = 1\n'
         '[[cluster.links]]\nfrom = 1\nto = 2\nrate = "x"', "key rate in c.toml, line 10"),
        ('[cluster]\nnodes = 4\ntopology = "mesh:2x2"\n[[cluster.links]]\nfrom = 0\nto = 3\nrate = "1Gbps"',
         "got the speed of 0>3"),
    ],
)  # fmt: skip
def test_mistakes_are_named_by_line(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        parse_cluster(text, "c.toml")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the cluster .*expected a TOML file"):
        load_cluster(tmp_path / "none.toml")
