"""A TOML file of one's own -> cases: policies, cluster, model, prompts, memory; lists are swept over.

policies = ["mars-paper", "ring"]   # any names; without it all
nodes = [2, 4]
prompt_tokens = ["8k", "32k"]
chunk_tokens = "auto"               # over all nodes; or node_tokens = 256, per node
memory = ["none", "2x", "256MiB"]   # KV budget per node; `2x`: twice its own share of the prompt
profile = "gpu-100g"                # a preset, a TOML file, or a table [profile] of numbers
topology = "switch"                 # or a table [cluster], as in mcf.cluster.read, instead of nodes and topology
seeds = [0, 1]                      # with spread = 0.2: each node computes 1 to 1.2 times as long, drawn by seed
decode = false                      # true: one generated token, too
layers = 4                          # simulated layers; the others are extrapolated; "all"

[model]                             # name = a shape by name; or folder = a model's; or its numbers
name = "qwen2.5-1.5b"
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from mcf import policies
from mcf.cluster import Cluster, NodeSpec, read_cluster
from mcf.cluster.tables import Table, parse_table, read_table
from mcf.errors import UnknownNameError, UserError
from mcf.mars import auto_chunk
from mcf.model import SHAPE_NAMES, ModelShape, named_shape
from mcf.sim import Profile, load_profile
from mcf.sim.profile import NUMBERS
from mcf.sim.simulate import LEAST_LAYERS
from mcf.study.lab import LAYERS, Case
from mcf.units import parse_bytes, parse_tokens

AUTO, NONE, ALL = "auto", "none", "all"
_AXES = ("policies", "nodes", "prompt_tokens", "chunk_tokens", "node_tokens", "memory", "profile", "topology", "seeds")
KEYS = (
    "name",
    *_AXES,
    "alpha",
    "stream_slots",
    "buffer",
    "drain_chunks",
    "layers",
    "spread",
    "decode",
    "model",
    "cluster",
)
_SIZES = ("num_layers", "num_q_heads", "num_kv_heads", "head_dim", "hidden_size", "intermediate_size", "vocab_size")
_BYTES = {
    "kv_bytes": "bytes per element: 0.5, 1, 2 or 4",
    "act_bytes": "bytes per element: 1, 2 or 4",
    "kv_scale_bytes": "bytes of scales per token and KV head, for keys and for values: 2 is one in fp16",
}
MAX_CASES = 10_000
T = TypeVar("T")
ReadShape = Callable[[str], ModelShape]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All cases of a file, in the order of its lists: the last key of `_AXES` turns fastest."""

    name: str
    cases: tuple[Case, ...]


def load_experiment(path: str, *, read_shape: ReadShape, profile: str | None = None) -> Experiment:
    """Read a file. `read_shape` turns a model's folder into its shape; `profile` stands in for the file's.

    Raises UserError with file, line and nearest key.
    """
    return _read(read_table(path, "experiment"), Path(path), read_shape, profile)


def parse_experiment(text: str, file: str, *, read_shape: ReadShape) -> Experiment:
    """Read TOML text; `file` names it in errors, and relative paths start from its folder."""
    return _read(parse_table(text, file), Path(file), read_shape, None)


def _read(table: Table, path: Path, read_shape: ReadShape, profile: str | None) -> Experiment:
    table.check_keys(KEYS)
    reader = _Reader(table, path.parent, read_shape)
    shape = reader.shape()
    profiles = [load_profile(profile)] if profile is not None else reader.profiles()
    axes = product(
        reader.policies(), reader.clusters(profiles), reader.tokens("prompt_tokens"), reader.chunks(), reader.memory(),
        profiles, reader.seeds(),
    )  # fmt: skip
    options = reader.options()
    cases = [
        _case(
            Case(policy=p, shape=shape, profile=f, cluster=c, prompt_tokens=s, chunk_tokens=1, seed=e, **options), b, m
        )
        for p, c, s, b, m, f, e in axes
    ]
    if len(cases) > MAX_CASES:
        raise UserError(f"got {len(cases)} cases in {table.file}: expected at most {MAX_CASES}; shorten the lists")
    return Experiment(name=table.get("name", str, "a name", path.stem), cases=tuple(cases))


@dataclass(frozen=True)
class _Chunk:
    """Tokens over all nodes, or per node; None of both is auto."""

    tokens: int | None = None
    node_tokens: int | None = None


@dataclass(frozen=True)
class _Memory:
    """Bytes per node, or times a node's own share; None of both is no limit."""

    num_bytes: int | None = None
    shares: float | None = None


def _case(bare: Case, chunk: _Chunk, memory: _Memory) -> Case:
    """Fill in what depends on other axes: budgets by shares, chunks by nodes."""
    nodes, shape, tokens = bare.cluster.num_nodes, bare.shape, bare.prompt_tokens
    cluster, budget = bare.cluster, memory.num_bytes
    if memory.shares is not None:
        budget = math.ceil(memory.shares * -(-tokens // nodes) * shape.kv_token_bytes)
    if budget is not None:
        cluster = replace(cluster, nodes=tuple(replace(node, kv_budget_bytes=budget) for node in cluster.nodes))
    size = chunk.tokens
    if chunk.node_tokens is not None:
        size = chunk.node_tokens * nodes
    if size is None:
        smallest = min((b for b in cluster.kv_budgets if b is not None), default=None)
        size = auto_chunk(N=nodes, S=tokens, L=shape.num_layers, m_l=shape.kv_token_layer_bytes, S_node=smallest)
    return replace(bare, cluster=cluster, chunk_tokens=min(size, tokens))


class _Reader:
    """One file's axes and options."""

    def __init__(self, table: Table, folder: Path, read_shape: ReadShape) -> None:
        self.table, self.folder, self.read_shape = table, folder, read_shape

    # --- axes ---

    def policies(self) -> list[str]:
        names = self._list("policies", (str,), "the name of a policy, or a list of names", list(policies.NAMES))
        for name in names:
            self._checked("policies", policies.check_name, name)
        return names

    def clusters(self, profiles: list[Profile]) -> list[Cluster]:
        inner = self.table.table("cluster")
        if inner is not None:
            for key in ("nodes", "topology"):
                if key in self.table:
                    self.table.refuse(key, "expected it in the table [cluster], which is there too")
            return [read_cluster(inner)]
        known = next((p for p in profiles if p.num_nodes), None)  # a profile of a cluster says how many
        usual = None if known is None else [known.num_nodes]
        specs = self._list("topology", (str,), "the name of a topology", [known.topology if known else "switch"])
        counts = self._list("nodes", (int,), "a number of nodes, or a list of them", usual)
        out = []
        for count, spec in product(counts, specs):
            if not 1 <= count <= 1024:
                self.table.refuse("nodes", "expected 1 to 1024")
            made = self._checked("topology", Cluster.uniform, spec, count)
            out.append(made if known is None or count != known.num_nodes else _with_budgets(made, known))
        return out

    def tokens(self, key: str) -> list[int]:
        values = self._list(key, (int, str), "a number of tokens such as 8192 or 8k, or a list of them", None)
        return [self._checked(key, parse_tokens, value) for value in values]

    def chunks(self) -> list[_Chunk]:
        if "node_tokens" in self.table:
            if "chunk_tokens" in self.table:
                self.table.refuse("node_tokens", "expected either chunk_tokens or node_tokens")
            return [_Chunk(node_tokens=t) for t in self.tokens("node_tokens")]
        if self.table.data.get("chunk_tokens", AUTO) == AUTO:
            return [_Chunk()]
        return [_Chunk(tokens=t) for t in self.tokens("chunk_tokens")]

    def memory(self) -> list[_Memory]:
        values = self._list("memory", (int, str), "bytes such as 256MiB, shares such as 2x, or none", [NONE])
        return [self._checked("memory", _memory, value) for value in values]

    def profiles(self) -> list[Profile]:
        if isinstance(self.table.data.get("profile"), dict):
            inner = self.table.table("profile")
            assert inner is not None
            return [_inline_profile(inner)]
        names = self._list("profile", (str,), "the name of a preset, a TOML file, or a table [profile]", None)
        return [self._checked("profile", load_profile, self._path(name)) for name in names]

    def seeds(self) -> list[int]:
        return self._list("seeds", (int,), "a whole number, or a list of them", [0])

    def _path(self, name: str) -> str:
        return str(self.folder / Path(name).expanduser()) if name.endswith(".toml") else name

    # --- options ---

    def options(self) -> dict[str, Any]:
        table = self.table
        layers: int | None = LAYERS
        if "layers" in table:
            given = table.get("layers", (int, str), "a number of layers or 'all'")
            if given != ALL and (isinstance(given, str) or given < LEAST_LAYERS):
                table.refuse("layers", f"expected at least {LEAST_LAYERS}, or 'all'")
            layers = None if given == ALL else given
        alpha = table.get("alpha", (int, float), "a number of at least 0, or inf")
        if alpha is not None and not alpha >= 0:
            table.refuse("alpha", "expected a number of at least 0, or inf")
        return {
            "layers": layers,
            "alpha": alpha,
            "stream_slots": self._at_least("stream_slots", 2, 1),
            "buffer_bytes": self._checked("buffer", lambda: parse_bytes(table.data["buffer"]))
            if "buffer" in table
            else 0,
            "drain_chunks": self._at_least("drain_chunks", 0, 0),
            "spread": self._spread(),
            "decode": bool(table.get("decode", bool, "true or false", False)),
        }

    def _spread(self) -> float:
        value = float(self.table.get("spread", (int, float), "a number of at least 0", 0.0))
        if not 0 <= value < math.inf:
            self.table.refuse("spread", "expected a number of at least 0")
        return value

    def _at_least(self, key: str, default: int, least: int) -> int:
        value = int(self.table.get(key, int, "a whole number", default))
        if value < least:
            self.table.refuse(key, f"expected at least {least}")
        return value

    # --- the model ---

    def shape(self) -> ModelShape:
        table = self.table.table("model")
        if table is None:
            raise UserError(f"missing table [model] in {self.table.file}: expected name, folder or sizes; add it")
        ways = [key for key in ("name", "folder") if key in table]
        inline = [key for key in _SIZES if key in table]
        if len(ways) + bool(inline) != 1:
            got = " and ".join([*ways, *inline[:1]]) or "nothing"
            raise UserError(
                f"got {got} in {table.where()}: expected one of name (a shape by name), folder (a model's), or sizes "
                "(num_layers and so on)"
            )
        table.check_keys((*(ways or _SIZES), *_BYTES))
        return self._with_bytes(table, self._base(table, ways[0] if ways else ""))

    def _base(self, table: Table, way: str) -> ModelShape:
        if way == "name":
            name = table.need("name", str, "the name of a shape")
            return _located(table, "name", _named_shape, name)
        if way == "folder":
            folder = str(self.folder / Path(table.need("folder", str, "a model's folder")).expanduser())
            return _located(table, "folder", self.read_shape, folder)
        sizes = {key: table.need(key, int, "a whole number of at least 1") for key in _SIZES}
        for key, value in sizes.items():
            if value < 1:
                table.refuse(key, "expected a whole number of at least 1")
        return _located(table, None, _shape_of, sizes)

    def _with_bytes(self, table: Table, shape: ModelShape) -> ModelShape:
        for key, what in _BYTES.items():
            if key in table:
                value = table.get(key, (int, float), what)
                shape = _located(table, key, _with, shape, key, value)
        return shape

    # --- reading ---

    def _list(self, key: str, kinds: tuple[type, ...], what: str, default: list[Any] | None) -> list[Any]:
        """One value or a list of them, without repeats."""
        if default is None:
            self.table.need(key, (*kinds, list), what)
        given = self.table.get(key, (*kinds, list), what, default)
        values = given if isinstance(given, list) else [given]
        if not values or not all(isinstance(v, kinds) and not isinstance(v, bool) for v in values):
            self.table.refuse(key, f"expected {what}")
        return list(dict.fromkeys(values))

    def _checked(self, key: str, make: Callable[..., T], *args: Any) -> T:
        return _located(self.table, key, make, *args)


def _located(table: Table, key: str | None, make: Callable[..., T], *args: Any) -> T:
    """What `make` gives; its error with file and line behind it."""
    try:
        return make(*args)
    except UserError as error:
        raise UserError(f"{error} ({table.where(key)})") from None


def _with_budgets(cluster: Cluster, profile: Profile) -> Cluster:
    """The cluster with the names and KV budgets of a profile's nodes."""
    nodes = (NodeSpec(name=node.name, kv_budget_bytes=node.kv_budget_bytes) for node in profile.nodes)
    return replace(cluster, nodes=tuple(nodes))


def _named_shape(name: str) -> ModelShape:
    if name not in SHAPE_NAMES:
        raise UnknownNameError("model shape", name, SHAPE_NAMES)
    return named_shape(name, dtype="bfloat16")


def _shape_of(sizes: dict[str, int]) -> ModelShape:
    return ModelShape(name="model", max_positions=2**40, **sizes)  # a shape of numbers has no window


def _with(shape: ModelShape, key: str, value: float) -> ModelShape:
    changes: dict[str, Any] = {key: value}
    return replace(shape, **changes)


def _memory(value: int | str) -> _Memory:
    if value == NONE:
        return _Memory()
    if isinstance(value, str) and value.endswith("x"):
        try:
            shares = float(value[:-1])
        except ValueError:
            shares = math.nan
        if not 0 < shares < math.inf:
            raise UserError(
                f"got memory {value!r}: expected for example 1.5x, a multiple above 0 of a node's own share"
            )
        return _Memory(shares=shares)
    return _Memory(num_bytes=parse_bytes(value))


def _inline_profile(table: Table) -> Profile:
    """Numbers without sources: one's own."""
    table.check_keys(("name", "physical", *NUMBERS))
    numbers = {key: table.need(key, (int, float), "a number") for key in NUMBERS}
    for key, may_be_zero in NUMBERS.items():
        if not math.isfinite(numbers[key]) or numbers[key] < 0 or (numbers[key] == 0 and not may_be_zero):
            table.refuse(key, f"expected a number {'of at least' if may_be_zero else 'above'} 0")
    name, physical = table.get("name", str, "a name", "inline"), table.get("physical", bool, "true or false", True)
    return Profile(name=name, physical=physical, **numbers)
