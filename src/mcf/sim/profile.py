"""Hardware as numbers, each with its source beside it. Presets are TOML files in `profiles/`.

A profile of a cluster has, beside the numbers of a usual node and link, a table `[[nodes]]` for each node and, where
links differ, tables `[[links]]`: `mcf doctor --measure --save` writes such a file. Or it has a table `[cluster]`
(`mcf.cluster.read`), and may take its numbers from another profile: `profile = "cpu-1g"`. docs/simulator.md has both.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mcf.cluster import SWITCH, Cluster, LinkSpec, read_cluster
from mcf.cluster.tables import Table, parse_table, read_table
from mcf.errors import UnknownNameError, UserError

Edge = tuple[int, int]

# TOML key -> whether zero is allowed; each is a table of `value` and `source`
NUMBERS: dict[str, bool] = {
    "flops_s": False,
    "memory_bytes_s": False,
    "memory_bytes": False,
    "link_bytes_s": False,
    "link_latency_s": True,
    "step_overhead_s": True,
    "weight_bytes": False,
}
# the same, where they are known: attention apart from dense work; what holds for bfloat16; one more for people to read
EXTRAS = (
    "attention_flops_s",
    "bf16_flops_s",
    "bf16_attention_flops_s",
    "bf16_memory_bytes_s",
    "bf16_weight_bytes",
    "stream_bytes_s",
)
# hardware that sends packets by one port of a node (`mcf.sim.packets`), and the clock that its numbers assume
PACKETS = (
    "port_bytes_s",
    "packet_bytes",
    "header_bytes",
    "buffer_bytes",
    "descriptor_s",
    "doorbell_s",
    "delivery_s",
    "clock_hz",
)
# hardware whose attention works on tiles of tokens, in decode; and what a reduction unit takes
TILES = ("tile_tokens", "tile_s", "record_s", "merge_s")
OF_NODE = ("flops_s", "memory_bytes_s", "memory_bytes", "link_bytes_s", "step_overhead_s", *EXTRAS)
OF_LINK = ("link_bytes_s", "link_latency_s")
_KEYS = (
    "name",
    "physical",
    "note",
    "topology",
    "num_nodes",
    *NUMBERS,
    *EXTRAS,
    *PACKETS,
    *TILES,
    "nodes",
    "links",
    "profile",
    "cluster",
)
OVERHEADS = ("buffer_bytes", "descriptor_s", "doorbell_s", "delivery_s", *TILES[1:])
_ALL = (*NUMBERS, *EXTRAS, *PACKETS, *TILES)
_PRESETS = resources.files("mcf.sim") / "profiles"


@dataclass(frozen=True, kw_only=True)
class ProfileNode:
    """One node of a cluster: its name, its KV budget if it has one, and the numbers in which it differs."""

    name: str = ""
    source: str = ""
    kv_budget_bytes: int | None = None
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """One kind of node and of link; with `nodes`, a cluster of them.

    `flops_s` floating-point (or integer) operations per second of a node, a multiply-add is two; `attention_flops_s`
    those of attention, `flops_s` where None; `memory_bytes_s` and `memory_bytes` its memory's speed and size;
    `link_bytes_s` bytes per second of one directed link (on a switch: of a node's port, each way); `link_latency_s`
    seconds per hop; `step_overhead_s` seconds that every compute row costs on top; `weight_bytes` bytes per weight;
    `bf16_...` the same in bfloat16 (`for_dtype`); `stream_bytes_s` a plain copy, which no prediction uses. `physical`
    says whether such hardware can exist. `sources` says of each number where it is from.

    With `port_bytes_s`, payloads are packets (`mcf.sim.packets`): what a node can send, and receive, in all;
    `packet_bytes` and `header_bytes` of a packet; `buffer_bytes` that may wait between two routers before the first
    lets no more go; `descriptor_s` seconds that a node takes to order a message, and `doorbell_s` to say so, once for
    16; `delivery_s` what a payload takes beside its packets and hops, from the order to the end. `clock_hz`: the clock
    that the numbers assume, which every output names (`label`). For decode: attention works on whole tiles of
    `tile_tokens`, takes `tile_s` more for each KV head and `record_s` for each query head's record; `merge_s` is what
    the merge of two states adds to their way.

    `nodes` are the nodes of a cluster in order, with what differs; `links` what differs of the link of each pair; none
    of them: any number of equal ones. Raises UserError for numbers that cannot be.
    """

    name: str
    physical: bool
    flops_s: float
    memory_bytes_s: float
    memory_bytes: float
    link_bytes_s: float
    link_latency_s: float
    step_overhead_s: float
    weight_bytes: float
    attention_flops_s: float | None = None
    bf16_flops_s: float | None = None
    bf16_attention_flops_s: float | None = None
    bf16_memory_bytes_s: float | None = None
    bf16_weight_bytes: float | None = None
    stream_bytes_s: float | None = None
    port_bytes_s: float | None = None
    packet_bytes: float | None = None
    header_bytes: float | None = None
    buffer_bytes: float | None = None
    descriptor_s: float | None = None
    doorbell_s: float | None = None
    delivery_s: float | None = None
    clock_hz: float | None = None
    tile_tokens: float | None = None
    tile_s: float | None = None
    record_s: float | None = None
    merge_s: float | None = None
    note: str = ""
    topology: str = "switch"
    sources: Mapping[str, str] = field(default_factory=dict, hash=False)
    nodes: tuple[ProfileNode, ...] = ()
    links: Mapping[Edge, Mapping[str, float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse numbers that are not finite, or not above zero where they must be."""
        own = {name: value for name in _ALL if (value := getattr(self, name)) is not None}
        for numbers in (own, *(node.numbers for node in self.nodes), *self.links.values()):
            for name, value in numbers.items():
                self._check_number(name, value)
        if self.port_bytes_s is None and (found := [name for name in PACKETS[1:-1] if name in own]):
            raise UserError(f"got {found[0]} in profile {self.name!r}: expected port_bytes_s beside it")
        if (self.packet_bytes is None) != (self.header_bytes is None):
            raise UserError(f"got one of packet_bytes and header_bytes in profile {self.name!r}: expected both")

    def _check_number(self, name: str, value: object) -> None:
        may_be_zero = NUMBERS.get(name, name in OVERHEADS)
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not math.isfinite(number) or number < 0 or (number == 0 and not may_be_zero):
            least = "at least 0" if may_be_zero else "more than 0"
            raise UserError(f"got {name} = {value!r} in profile {self.name!r}: expected a number of {least}")

    @property
    def label(self) -> str:
        """The name, and the clock that the numbers assume: what outputs print."""
        return self.name if self.clock_hz is None else f"{self.name} ({self.clock_hz / 1e6:g} MHz assumed)"

    @property
    def num_nodes(self) -> int | None:
        """Nodes of the cluster; None for one kind of node, of which there may be any number."""
        return len(self.nodes) or None

    def by_node(self, name: str, num_nodes: int) -> NDArray[np.float64]:
        """[N] one number of each node. Raises UserError where the cluster has another number of nodes."""
        usual = float(getattr(self, name))
        if not self.nodes:
            return np.full(num_nodes, usual)
        if len(self.nodes) != num_nodes:
            raise UserError(
                f"profile {self.name!r} has {len(self.nodes)} nodes, the schedule {num_nodes}: expected as many"
            )
        return np.array([node.numbers.get(name, usual) for node in self.nodes])

    def attention_by_node(self, num_nodes: int) -> NDArray[np.float64]:
        """[N] operations per second of attention."""
        name = "flops_s" if self.attention_flops_s is None else "attention_flops_s"
        return self.by_node(name, num_nodes)

    def link_rate(self, a: int, b: int) -> float:
        """Bytes per second from node a to node b with nothing else under way."""
        ends = [self.nodes[node].numbers.get("link_bytes_s", self.link_bytes_s) for node in (a, b) if self.nodes]
        return self.links.get((a, b), {}).get("link_bytes_s", min(ends, default=self.link_bytes_s))

    def port_rate(self, node: int) -> float:
        """Bytes per second of a node's port on a switch, each way."""
        own = self.nodes[node].numbers if self.nodes else {}
        return own.get("link_bytes_s", self.link_bytes_s)

    def link_latency(self, a: int, b: int) -> float:
        """Seconds from node a to node b for the least message."""
        return self.links.get((a, b), {}).get("link_latency_s", self.link_latency_s)

    def for_dtype(self, dtype: str) -> "Profile":
        """The profile with its bfloat16 numbers in place of the usual ones, where it has them and that is the dtype."""
        if dtype != "bfloat16":
            return self
        nodes = tuple(replace(node, numbers=_in_bf16(node.numbers)) for node in self.nodes)
        usual = {name: value for name in (*NUMBERS, *EXTRAS) if (value := getattr(self, name)) is not None}
        changes: dict[str, Any] = _in_bf16(usual)
        return replace(self, nodes=nodes, **changes)

    def best(self) -> "Profile":
        """The profile of equal nodes and links as good as the best one of each number: what bounds may assume."""
        every = {
            name: [value for node in self.nodes if (value := node.numbers.get(name, getattr(self, name))) is not None]
            for name in OF_NODE
        }
        for name in OF_LINK:
            every[name] = [*every.get(name, ()), *(link[name] for link in self.links.values() if name in link)]
            every[name] += [getattr(self, name)]
        least = ("link_latency_s", "step_overhead_s")
        found = {name: (min if name in least else max)(values) for name, values in every.items() if values}
        changes: dict[str, Any] = found
        return replace(self, nodes=(), links={}, **changes)


def _in_bf16(numbers: Mapping[str, float]) -> dict[str, float]:
    return {**numbers, **{name.removeprefix("bf16_"): value for name, value in numbers.items() if "bf16_" in name}}


def _names() -> tuple[str, ...]:
    return tuple(sorted(p.name.removesuffix(".toml") for p in _PRESETS.iterdir() if p.name.endswith(".toml")))


NAMES = _names()


def load_profile(name: str | PathLike[str]) -> Profile:
    """Read a preset by its name, or a TOML file by its path (anything that ends in `.toml`).

    Raises UnknownNameError for an unknown preset, and UserError with file, line, key and nearest key for anything that
    a profile does not have.
    """
    text = str(name)
    if text.endswith(".toml"):
        return _whole(read_table(text, "profile"))
    if text not in NAMES:
        raise UnknownNameError("profile", text, NAMES, or_else="a file whose name ends in .toml")
    return parse_profile((_PRESETS / f"{text}.toml").read_text(encoding="utf-8"), f"{text}.toml")


def parse_profile(text: str, file: str) -> Profile:
    """Read a profile from TOML text; `file` names it in errors."""
    return _whole(parse_table(text, file))


def _whole(table: Table) -> Profile:
    table.check_keys(_KEYS)
    base = _base(table)
    needed = NUMBERS if base is None else ()
    numbers = {key: _number(table, key) for key in _ALL if key in table or key in needed}
    own: dict[str, Any] = {} if base is None else dict(vars(base))
    own |= {key: value for key, (value, _) in numbers.items()}
    own["sources"] = {**own.get("sources", {}), **{key: source for key, (_, source) in numbers.items()}}
    for key, kind, what in (("name", str, "a text"), ("physical", bool, "true or false"), ("note", str, "a text")):
        if key in table or (key != "note" and base is None):
            own[key] = table.need(key, kind, what)
    if base is not None and "name" not in table:
        own["name"] = Path(table.file).stem
    try:
        return Profile(**own | _parts(table))
    except UserError as error:
        raise error if table.file in str(error) else UserError(f"{error} ({table.file})") from None


def _base(table: Table) -> Profile | None:
    """The profile whose numbers hold where this one says nothing."""
    if "profile" not in table:
        if "cluster" in table and not any(key in table for key in NUMBERS):
            raise UserError(
                f"got the table [cluster] alone in {table.file}: expected how fast its nodes are, too; add a line such "
                'as profile = "cpu-1g" above it (a preset or a TOML file)'
            )
        return None
    name = table.need("profile", str, "the name of a preset or a TOML file")
    try:
        if name.endswith(".toml"):
            found = read_table(str(Path(table.file).parent / Path(name).expanduser()), "profile")
            if "profile" in found:
                found.refuse("profile", "expected numbers of its own, since another file names this one as its profile")
            return _whole(found)
        return load_profile(name)
    except UserError as error:
        raise UserError(f"{error} (key profile in {table.where('profile')})") from None


def _parts(table: Table) -> dict[str, Any]:
    """Nodes, links and topology: from the table `[cluster]`, or from tables of nodes and links."""
    inner = table.table("cluster")
    if inner is None:
        nodes = _nodes(table)
        found: dict[str, Any] = {"nodes": nodes, "links": _links(table, len(nodes))}
        if "topology" in table:
            found["topology"] = table.need("topology", str, "the name of a topology")
        return {key: value for key, value in found.items() if value}
    for key in ("nodes", "links", "num_nodes", "topology"):
        if key in table:
            table.refuse(key, "expected it in the table [cluster], which is there too")
    return _of_cluster(read_cluster(inner))


def _of_cluster(cluster: Cluster) -> dict[str, Any]:
    """What a profile says of a cluster: budgets, topology, links. A port of a switch has one rate, its slower one."""
    ports: dict[int, dict[str, float]] = {}
    links: dict[Edge, dict[str, float]] = {}
    for (a, b), spec in cluster.links.items():
        speeds = _speeds(spec)
        if SWITCH not in (a, b):
            links[a, b] = speeds
            continue
        port = ports.setdefault(max(a, b), {})
        if "link_bytes_s" in speeds:
            port["link_bytes_s"] = min(speeds["link_bytes_s"], port.get("link_bytes_s", math.inf))
        for other in range(cluster.num_nodes) if "link_latency_s" in speeds else ():
            pair = links.setdefault((a, other) if b == SWITCH else (other, b), {})
            pair["link_latency_s"] = max(speeds["link_latency_s"], pair.get("link_latency_s", 0.0))
    links = {(a, b): speeds for (a, b), speeds in links.items() if a != b}
    nodes = tuple(
        ProfileNode(name=node.name, source="[cluster]", kv_budget_bytes=node.kv_budget_bytes, numbers=ports.get(n, {}))
        for n, node in enumerate(cluster.nodes)
    )
    return {"nodes": nodes, "links": links, "topology": cluster.topology.name} | _speeds(cluster.link)


def _speeds(spec: LinkSpec) -> dict[str, float]:
    out = {} if spec.rate_bits_s is None else {"link_bytes_s": spec.rate_bits_s / 8}
    return out if spec.latency_s is None else {**out, "link_latency_s": spec.latency_s}


def _number(table: Table, key: str) -> tuple[float, str]:
    table.need(key, dict, "a table of value and source")
    inner = table.table(key)
    assert inner is not None
    inner.check_keys(("value", "source"))
    return inner.need("value", (int, float), "a number"), inner.need("source", str, "where the number is from")


def _nodes(table: Table) -> tuple[ProfileNode, ...]:
    """The nodes, one table each; or `num_nodes` equal ones."""
    found = tuple(_node(each) for each in table.tables("nodes"))
    count = table.get("num_nodes", int, "a number of nodes", len(found))
    if "num_nodes" in table and (count < 1 or (found and count != len(found))):
        table.refuse("num_nodes", f"expected {len(found) or 'at least 1'}")
    return found or (ProfileNode(),) * count


def _node(table: Table) -> ProfileNode:
    table.check_keys(("name", "source", "kv_budget_bytes", *OF_NODE))
    budget = table.get("kv_budget_bytes", int, "a number of bytes")
    if budget is not None and budget < 1:
        table.refuse("kv_budget_bytes", "expected at least 1; leave it out where there is no limit")
    return ProfileNode(
        name=table.get("name", str, "a text", ""),
        source=table.need("source", str, "where the numbers are from"),
        kv_budget_bytes=budget,
        numbers=_plain(table, OF_NODE),
    )


def _links(table: Table, num_nodes: int) -> dict[Edge, Mapping[str, float]]:
    """What differs, by (from, to); `between = [a, b]` says it of both directions."""
    out: dict[Edge, Mapping[str, float]] = {}
    for each in table.tables("links"):
        each.check_keys(("from", "to", "between", "source", *OF_LINK))
        each.need("source", str, "where the numbers are from")
        for edge in _edges(each, num_nodes):
            if edge in out:
                raise UserError(f"link {edge[0]} to {edge[1]} stands twice in {each.where()}: expected it once")
            out[edge] = _plain(each, OF_LINK)
    return out


def _edges(table: Table, num_nodes: int) -> list[Edge]:
    both = table.get("between", list, "two nodes, for example [0, 1]")
    if both is not None:
        if "from" in table or "to" in table:
            table.refuse("between", "expected it without from and to")
        ends = both
    else:
        ends = [table.need(key, int, "a node's number") for key in ("from", "to")]
    right = len(ends) == 2 and all(type(end) is int and 0 <= end < num_nodes for end in ends) and ends[0] != ends[1]
    if not right:
        table.refuse("to" if both is None else "between", f"expected two different nodes below {num_nodes}")
    a, b = ends
    return [(a, b)] if both is None else [(a, b), (b, a)]


def _plain(table: Table, names: tuple[str, ...]) -> dict[str, float]:
    return {name: table.need(name, (int, float), "a number") for name in names if name in table}
