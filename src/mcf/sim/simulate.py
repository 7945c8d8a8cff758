"""`simulate`: how long a verified schedule takes, by discrete events; layers may be extrapolated."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from mcf.cluster import Cluster
from mcf.errors import UserError
from mcf.model import ModelShape
from mcf.schedule import Schedule
from mcf.schedule.schedule import Array
from mcf.schedule.steps import MERGE, PREFILL, PURPOSE_NAMES
from mcf.sim.cost import head_seconds, row_seconds
from mcf.sim.fold import find_fold
from mcf.sim.machine import Machine
from mcf.sim.network import Line, LinkChange, Network, used_cluster
from mcf.sim.packets import PacketTransfers
from mcf.sim.profile import Profile
from mcf.sim.record import multicast_rate, to_trace
from mcf.sim.result import SimResult
from mcf.trace import Trace

LEAST_LAYERS = 4  # the first has a prologue, the second finds links without a backlog, the last fetches nothing


def simulate(
    schedule: Schedule,
    profile: Profile,
    *,
    shape: ModelShape,
    layers: int | None = None,
    cluster: Cluster | None = None,
    slowdown: Sequence[float] | None = None,
    changes: Sequence[LinkChange] = (),
    merges: bool = False,
    fold: bool = True,
) -> SimResult:
    """Time the prefill of a schedule that `verify` has passed, on the nodes of a profile and the links of a cluster.

    `layers`: how many of the model's layers to simulate; the others are extrapolated from the later half of those
    before the last, chunk by chunk and node by node. None simulates all. `cluster` gives links speeds of their own,
    where it knows them; without it all have the profile's. It may have links that the schedule's topology leaves out.
    `slowdown` [N]: how many times longer each node computes than the profile says (None: 1 for all).
    `changes`: links that become slow or die. `merges`: states merge inside the network (`sim.reduce`). `fold`:
    where all nodes do the same (`sim.fold` checks that), one is simulated for all; the times are the same to the last
    bit. Decode rows are left out: see `decode_s`. The same arguments give the same result.
    Raises UserError for a shape or a cluster that is not the schedule's, for too few layers, for a slowdown below 1,
    and for links that change in a time that is extrapolated; RunError when a payload waits for a dead link.
    """
    _check_shape(schedule, shape)
    num_layers = schedule.meta.num_layers
    ticks = _num_ticks(layers, num_layers)
    if ticks < num_layers and any(change.at_s for change in changes):
        raise UserError(
            f"got links that change while {ticks} of {num_layers} layers are simulated: simulate all layers"
        )
    used = used_cluster(schedule, cluster)
    _check_packets(profile, changes, merges=merges)
    slow = _slowdown(slowdown, schedule.meta.num_nodes)[schedule.steps["node"]]
    seconds = row_seconds(schedule, shape, profile) * slow
    found = find_fold(schedule, seconds, used, profile) if fold and _may_fold(profile, changes, merges=merges) else None
    sched, seconds = (schedule, seconds) if found is None else (found.schedule, found.seconds)
    network = Network(used, profile, changes, None if found is None else found.turn)
    with _without_garbage_collection():
        trace, finish = _run(sched, network, seconds, ticks, _meta(schedule, profile, ticks), merges=merges)
    finish = finish if found is None else np.full_like(finish, finish[0])
    busy = network.busy if found is None else found.link_busy(network.busy)
    return SimResult(
        recorded=trace,
        fold=found,
        ttft_s=float(finish.max()) + head_seconds(shape, profile),
        finish_s=tuple(finish.tolist()),
        link_busy_s={link: taken * num_layers / ticks for link, taken in sorted(busy.items())},
        traffic=_traffic(trace, num_layers, ticks, 1 if found is None else schedule.meta.num_nodes),
        multicast_bytes_s=multicast_rate(sched, trace, folded=found is not None),
        num_layers=num_layers,
        simulated_layers=ticks,
    )


def _run(
    sched: Schedule,
    network: Network,
    seconds: Array,
    ticks: int,
    meta: dict[str, str | int | float | bool],
    *,
    merges: bool,
) -> tuple[Trace, Array]:
    """Run the machine; what is kept of it is the trace and when each node has finished."""
    machine = Machine(sched, network, seconds.tolist(), ticks, merges=merges)
    machine.run()
    trace = to_trace(machine, meta)
    return trace, _finish(sched, machine, trace, sched.meta.num_layers)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Millions of small objects live until the end, in no cycles: looking through them costs a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _check_shape(sched: Schedule, shape: ModelShape) -> None:
    for name in ("num_layers", "num_q_heads", "num_kv_heads", "head_dim", "kv_bytes", "act_bytes", "kv_scale_bytes"):
        got, expected = getattr(shape, name), getattr(sched.meta, name)
        if got != expected:
            raise UserError(f"got a shape with {name} = {got}: expected {expected}, as in the schedule")


def _check_packets(profile: Profile, changes: Sequence[LinkChange], *, merges: bool) -> None:
    if profile.port_bytes_s is not None and (changes or merges):
        what = "links that change" if changes else "states that merge in the network"
        raise UserError(f"got {what} on profile {profile.name!r}: expected a profile without port_bytes_s")


def _may_fold(profile: Profile, changes: Sequence[LinkChange], *, merges: bool) -> bool:
    """Say whether one node may stand for all: not where payloads share what they use, each node by its own ways."""
    return profile.port_bytes_s is None and not merges and not changes


def _slowdown(factors: Sequence[float] | None, num_nodes: int) -> Array:
    """[N] factors of at least 1: with less, a simulated time could be below a lower bound."""
    out: Array = np.ones(num_nodes) if factors is None else np.array(factors, dtype=np.float64)
    if out.shape != (num_nodes,) or not (np.isfinite(out) & (out >= 1)).all():
        raise UserError(f"got slowdown {list(factors or ())}: expected {num_nodes} numbers of at least 1")
    return out


def _num_ticks(layers: int | None, num_layers: int) -> int:
    if layers is None or layers >= num_layers:
        return num_layers
    if layers < LEAST_LAYERS:
        raise UserError(
            f"got layers = {layers}: expected at least {LEAST_LAYERS}, or none to simulate all {num_layers}"
        )
    return layers


def _meta(sched: Schedule, profile: Profile, ticks: int) -> dict[str, str | int | float | bool]:
    return {
        "executor": "sim",
        "policy": sched.meta.policy,
        "profile": profile.label,
        "physical": profile.physical,
        "num_layers": sched.meta.num_layers,
        "simulated_layers": ticks,
    }


def _finish(sched: Schedule, machine: Machine, trace: Trace, num_layers: int) -> Array:
    """[N] seconds of each node's last prefill row, the layers that were not simulated added."""
    ticks, num_nodes = machine.ticks, sched.meta.num_nodes
    ends = np.array(machine.end).reshape(-1, ticks)
    last = np.nanmax(np.concatenate([ends, np.zeros((len(ends), 1))], axis=1), axis=1)
    out = np.zeros(num_nodes)
    np.maximum.at(out, sched.steps["node"], last)
    if ticks < num_layers:
        s = sched.steps
        rows = np.flatnonzero((s["kind"] == MERGE) & (s["stage"] == PREFILL) & (s["q"] == s["node"]))
        since = (ticks - 2) // 2  # what is fetched ahead needs some layers to come into its stride
        steady = (ends[rows, ticks - 2] - ends[rows, since]) / (ticks - 2 - since)
        crowded = _crowded(machine, trace)[s["chunk"][rows], s["node"][rows]] / ticks
        np.add.at(out, s["node"][rows], np.maximum(steady, crowded) * (num_layers - ticks))
    return out


def _crowded(machine: Machine, trace: Trace) -> Array:
    """[C, N] seconds that a chunk's payloads occupy the busiest line into each node: no layer goes by in less of that.

    Few layers may not show it: a line catches up where the next layer's history is not asked for any more.
    """
    if isinstance(machine.transfers, PacketTransfers):
        return machine.transfers.entered
    meta, network = machine.program.sched.meta, machine.network
    moved = trace.events[trace.events["payload_bytes"] > 0]
    crossed: dict[tuple[int, Line], float] = {}
    names = ("chunk", "node", "peer", "payload_bytes")
    for chunk, a, b, num_bytes in zip(*(moved[name].tolist() for name in names), strict=True):
        line, size = network.into(a, b, num_bytes)[:2] if network.has_ports else (network.line(a, b), num_bytes)
        crossed[chunk, line] = crossed.get((chunk, line), 0.0) + size
    out = np.zeros((meta.num_chunks, meta.num_nodes))
    for (chunk, line), num_bytes in crossed.items():
        b = line.link[1]
        out[chunk, b] = max(out[chunk, b], line.took(num_bytes, 0.0))
    return out


def _traffic(trace: Trace, num_layers: int, ticks: int, copies: int) -> dict[str, int]:
    totals = trace.bytes_by_purpose(PREFILL)
    return {name: totals[name] * copies // ticks * num_layers for name in PURPOSE_NAMES.values()}
