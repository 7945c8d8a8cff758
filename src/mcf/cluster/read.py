"""A cluster from TOML: the table `[cluster]`, in a file of its own, in a profile or in a run's file: one format.

[cluster]
topology = "mesh:2x2"              # any name of `cluster.names`; `graph` and `tree` may take their links from below
nodes = 4                          # how many; or their names; or [[cluster.nodes]] with name and kv_memory

[cluster.node]                     # what holds for every node
kv_memory = "2GiB"

[cluster.link]                     # what holds for every link
rate = "1Gbit/s"
latency = "50us"

[[cluster.links]]                  # links that differ, or that make the graph; each way unless one_way = true
from = 0
to = 1
rate = "100Mbit/s"
"""

from os import PathLike
from typing import Any

from mcf.cluster.names import write_links
from mcf.cluster.specs import SWITCH, Cluster, LinkSpec, NodeSpec
from mcf.cluster.tables import Table, parse_table, read_table
from mcf.cluster.topology import Edge, Topology
from mcf.errors import UserError
from mcf.units import parse_bytes, parse_rate, parse_seconds

KEYS = ("topology", "nodes", "node", "link", "links")
_LINK = ("rate", "latency")
Speeds = dict[Edge, LinkSpec]


def load_cluster(path: str | PathLike[str]) -> Cluster:
    """Read the table `[cluster]` of a TOML file. Raises UserError with file, line and nearest key."""
    return _whole(read_table(path, "cluster"))


def parse_cluster(text: str, file: str) -> Cluster:
    """Read the table `[cluster]` of TOML text; `file` names it in errors."""
    return _whole(parse_table(text, file))


def _whole(table: Table) -> Cluster:
    known = ("cluster", "profile") if "profile" in table else ("cluster",)  # that one is `mcf.sim.load_profile`'s
    table.check_keys(known)
    found = table.table("cluster")
    if found is None:
        raise UserError(f"missing table [cluster] in {table.file}: expected topology and nodes; add it")
    return read_cluster(found)


def read_cluster(table: Table) -> Cluster:
    """Build the cluster of a table `[cluster]`."""
    table.check_keys(KEYS)
    nodes = _nodes(table)
    spec = table.get("topology", str, "the name of a topology", "switch").strip()
    speeds = _speeds(table, [node.name for node in nodes], is_switch=spec == "switch")
    if spec in ("graph", "tree") and speeds:
        spec = f"{spec}:{write_links(speeds)}"
    usual = _speed(table.table("link"), _LINK)
    try:
        topology = Topology.parse(spec, len(nodes))
        return Cluster(nodes=nodes, topology=topology, link=usual, links=_differing(speeds))
    except UserError as error:
        key = "topology" if "topology" in table else None
        raise UserError(f"{error} ({table.where(key)})") from None


def _differing(speeds: Speeds) -> Speeds:
    return {edge: spec for edge, spec in speeds.items() if spec != LinkSpec()}


def _nodes(table: Table) -> tuple[NodeSpec, ...]:
    every = table.table("node")
    budget = None if every is None else _budget(every, ("kv_memory",))
    given = table.need("nodes", (int, list), "how many nodes there are, or their names")
    if isinstance(given, int):
        if not 1 <= given <= 2**16:
            table.refuse("nodes", "expected at least 1")
        return (NodeSpec(kv_budget_bytes=budget),) * given
    if given and all(isinstance(name, str) for name in given):
        nodes = tuple(NodeSpec(name=name, kv_budget_bytes=budget) for name in given)
    else:
        nodes = tuple(_node(one, budget) for one in table.tables("nodes"))
    names = [node.name for node in nodes if node.name]
    if not nodes or len(set(names)) < len(names):
        table.refuse("nodes", "expected at least one node, and no name twice")
    return nodes


def _node(table: Table, budget: int | None) -> NodeSpec:
    own = _budget(table, ("name", "kv_memory"))
    return NodeSpec(name=table.get("name", str, "a name", ""), kv_budget_bytes=budget if own is None else own)


def _budget(table: Table, known: tuple[str, ...]) -> int | None:
    table.check_keys(known)
    return None if "kv_memory" not in table else _parsed(table, "kv_memory", parse_bytes)


def _speeds(table: Table, names: list[str], *, is_switch: bool) -> Speeds:
    out: Speeds = {}
    for link in table.tables("links"):
        spec = _speed(link, ("from", "to", "one_way", *_LINK))
        a, b = (_end(link, key, names, is_switch=is_switch) for key in ("from", "to"))
        if a == b:
            link.refuse("to", "expected two different ends")
        both = not link.get("one_way", bool, "true or false", False)
        for edge in [(a, b), (b, a)] if both else [(a, b)]:
            if edge in out:
                raise UserError(f"link {edge[0]}>{edge[1]} stands twice in {link.where()}: expected it once")
            out[edge] = spec
    return out


def _end(table: Table, key: str, names: list[str], *, is_switch: bool) -> int:
    value = table.need(key, (int, str), "a node's number or name")
    if is_switch and value == "switch":
        return SWITCH
    if isinstance(value, str):
        if value not in names:
            known = f"one of {', '.join(name for name in names if name)}" if any(names) else "a node's number"
            table.refuse(key, f"expected {known}{' or switch' if is_switch else ''}")
        return names.index(value)
    if not 0 <= value < len(names):
        table.refuse(key, f"expected a node from 0 to {len(names) - 1}{' or switch' if is_switch else ''}")
    return int(value)


def _speed(table: Table | None, known: tuple[str, ...]) -> LinkSpec:
    if table is None:
        return LinkSpec()
    table.check_keys(known)
    rate = _parsed(table, "rate", parse_rate) if "rate" in table else None
    latency = _parsed(table, "latency", parse_seconds) if "latency" in table else None
    return LinkSpec(rate_bits_s=rate, latency_s=latency)


def _parsed(table: Table, key: str, parse: Any) -> Any:
    try:
        return parse(table.data[key])
    except UserError as error:
        raise UserError(f"{error} (key {key} in {table.where(key)})") from None
