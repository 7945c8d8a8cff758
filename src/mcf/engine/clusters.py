"""A cluster profile for planning: workers, KV budgets and topology from it, and the time that `mcf.sim` predicts."""

from collections.abc import Mapping
from dataclasses import dataclass

from mcf.cluster import Cluster, NodeSpec, Topology
from mcf.dist.torchrun import LOCAL_WORKERS
from mcf.engine.doctor.needs import buffer_bytes
from mcf.engine.planner import RUN_TOKENS
from mcf.errors import InfeasibleError, UserError
from mcf.mars import Rates
from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.sim import Profile, bounds, rates_of, simulate
from mcf.units import format_bytes

_MOST_RUNS = 400_000  # rows times layers that are simulated one by one, in seconds; else layers are extrapolated
_SOME_LAYERS = 6


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What `mcf.sim` says of a schedule: seconds to the first token, and the bounds that no executor can beat.

    `waiting_s` is how long the node that ends last stands still for communication; `limit` names the largest bound.
    """

    profile: str
    physical: bool
    ttft_s: float
    waiting_s: float
    bound_s: float
    limit: str
    bounds: Mapping[str, float]


def cluster_of(
    profile: Profile, shape: ModelShape, *, num_workers: int | None = None, kv_memory_bytes: int | None = None
) -> Cluster:
    """Return the cluster of a profile: its nodes, or `num_workers` equal ones where it names none.

    A node's KV budget is `kv_memory_bytes`, else its own, else its memory less weights and activations. Raises
    UserError for another number of workers than nodes, InfeasibleError for a node without room for any KV.
    """
    _check_workers(profile, num_workers)
    count = profile.num_nodes or num_workers or LOCAL_WORKERS
    names = [node.name for node in profile.nodes] or [""] * count
    budgets = [kv_memory_bytes or _budget(profile, shape, node, count) for node in range(count)]
    nodes = tuple(NodeSpec(name=name, kv_budget_bytes=size) for name, size in zip(names, budgets, strict=True))
    return Cluster(nodes=nodes, topology=Topology.parse(profile.topology, count))


def speeds_of(profile: Profile, num_workers: int) -> Rates:
    """The speeds of a profile's slowest node and link, for workers that all reach each other.

    Raises UserError for another number of workers than nodes.
    """
    _check_workers(profile, num_workers)
    return rates_of(profile, Cluster.uniform("switch", num_workers))


def _check_workers(profile: Profile, num_workers: int | None) -> None:
    if num_workers is not None and profile.num_nodes not in (None, num_workers):
        raise UserError(
            f"got {num_workers} workers, and {profile.num_nodes} nodes in the profile {profile.name!r}: expected as "
            f"many: --workers {profile.num_nodes}"
        )


def _budget(profile: Profile, shape: ModelShape, node: int, num_nodes: int) -> int:
    if profile.nodes and (own := profile.nodes[node].kv_budget_bytes) is not None:
        return own
    memory = profile.by_node("memory_bytes", num_nodes)[node]
    weights, buffers = shape.num_weights * profile.weight_bytes, buffer_bytes(shape, RUN_TOKENS)
    left = int(memory - weights - buffers)
    if left < 1:
        raise InfeasibleError(
            f"node {node} of the profile {profile.name!r} has {format_bytes(memory)} of memory: expected room for "
            f"weights ({format_bytes(weights)}), activations ({format_bytes(buffers)}) and some KV; "
            f"{format_bytes(1 - left)} are missing",
            missing_bytes=1 - left,
        )
    return left


def predict(schedule: Schedule, profile: Profile, shape: ModelShape) -> Prediction:
    """Simulate a verified schedule's prefill on a profile. Raises UserError where the two do not fit together."""
    few = len(schedule) * schedule.meta.num_layers > _MOST_RUNS
    result = simulate(schedule, profile, shape=shape, layers=_SOME_LAYERS if few else None)
    found = bounds(schedule, profile, shape=shape)
    end_s = float(result.trace.events["t_end"].max(initial=0.0))
    parts = result.trace.breakdown(result.trace.last_node(), 0.0, end_s)
    waiting = parts["exposed_communication_s"] / end_s if end_s else 0.0
    return Prediction(
        profile=profile.label,
        physical=profile.physical,
        ttft_s=result.ttft_s,
        waiting_s=waiting * result.ttft_s,
        bound_s=found.bound_s,
        limit=found.limit,
        bounds=found.bounds,
    )
