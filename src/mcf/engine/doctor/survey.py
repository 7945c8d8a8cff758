"""What a doctor's examination brings home from the nodes, and what the checks say of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of a diagnosis: how bad, by which check, on which node ("" where all are meant), what, and the cure."""

    level: str
    check: str
    node: str = ""
    what: str
    do: str = ""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """A node's clocks as the head sees them: the wall clock's offset in seconds, give or take half a round trip."""

    offset_s: float
    round_trip_s: float
    is_monotone: bool


@dataclass(frozen=True, kw_only=True)
class NodeReport:
    """One worker as it was found. `facts` is what `mcf.dist.interfaces` and `mcf.dist.machine` tell.

    `address` is where the others reach it; `cannot_listen` says why it can open no port there, "" where it can.
    `cannot_reach` maps each other rank to why its port cannot be reached from here, "" where it can.
    """

    rank: int
    versions: Mapping[str, str]
    facts: Mapping[str, Any]
    address: str
    clock: Clock
    cannot_listen: str = ""
    cannot_reach: Mapping[int, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The worker's name in a line."""
        return f"worker {self.rank} on {self.facts['host']}"

    def interface(self) -> Mapping[str, Any] | None:
        """The interface that has `address`, None where none has."""
        found = (each for each in self.facts["interfaces"] if self.address in each["addresses"])
        return next(found, None)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Bytes that a model asks of each worker; `kv_bytes` is None where no KV budget is set."""

    weight_bytes: int
    buffer_bytes: int
    kv_bytes: int | None
    kv_token_bytes: int
    dtype: str

    @property
    def least_bytes(self) -> int:
        """What a worker needs before it can hold any KV, or with its KV budget where that is set."""
        return self.weight_bytes + self.buffer_bytes + (self.kv_bytes or 0)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """All nodes in rank order; `is_local` says that all are processes of this machine; `needs` of the model, if any."""

    nodes: Sequence[NodeReport]
    is_local: bool
    needs: Needs | None = None

    @property
    def has_model(self) -> bool:
        """Whether a model was looked at."""
        return any(node.facts["fingerprint"] for node in self.nodes)

    def machines(self) -> list[list[NodeReport]]:
        """The workers of each machine, machines in the order of their first worker."""
        found: dict[str, list[NodeReport]] = {}
        for node in self.nodes:
            found.setdefault(node.facts["machine"], []).append(node)
        return list(found.values())

    def threads(self) -> list[int]:
        """Threads of each worker in a run: its share of the cores that its machine lets it use, at least 1."""
        shares = {
            node.rank: max(1, node.facts["cpu"]["allowed_cores"] // len(mates))
            for mates in self.machines()
            for node in mates
        }
        return [shares[node.rank] for node in self.nodes]
