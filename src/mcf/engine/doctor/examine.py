"""Ask every node what it is like: facts, clocks, ports. Needs workers that have said hello, not that they have met."""

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from mcf.dist.world import World
from mcf.engine.doctor.survey import Clock, NodeReport

NUM_ROUND_TRIPS = 7  # the shortest counts: nothing held it up


def examine(world: World, *, cache: Path, folder: Path | None = None) -> list[NodeReport]:
    """Return a report for each rank.

    `cache` is the folder of converted models, `folder` a model's on this machine; workers on other hosts have said
    already which model they have. Raises RunError kinds.
    """
    addresses, told = world.addresses, world.fingerprints
    for rank in range(world.num_workers):
        peers = [address for other, address in enumerate(addresses) if other != rank]
        own = "" if folder is None or rank in told else str(folder)
        world.send(rank, "examine", peers=sorted(set(peers)), cache=str(cache), folder=own)
    facts = {rank: frame["facts"] for rank, frame in world.wait_for("examined").items()}
    for rank, fingerprint in told.items():
        facts[rank]["fingerprint"] = fingerprint
    clocks = [_clock(world, rank) for rank in range(world.num_workers)]
    cannot_listen, cannot_reach = _ports(world, addresses)
    return [
        NodeReport(
            rank=rank,
            versions=world.hellos[rank]["versions"],
            facts=facts[rank],
            address=addresses[rank],
            clock=clocks[rank],
            cannot_listen=cannot_listen[rank],
            cannot_reach=cannot_reach[rank],
        )
        for rank in range(world.num_workers)
    ]


def _clock(world: World, rank: int) -> Clock:
    """The offset by the shortest of a few round trips: the node's clock against the middle of the trip."""
    best_s, offset_s = float("inf"), 0.0
    monotonic: list[float] = []
    for _ in range(NUM_ROUND_TRIPS):
        begin_s, wall_s = time.monotonic(), time.time()
        world.send(rank, "clock")
        frame = world.wait_for("clocked", [rank])[rank]
        trip_s = time.monotonic() - begin_s
        monotonic.append(frame["monotonic_s"])
        if trip_s < best_s:
            best_s, offset_s = trip_s, frame["wall_s"] - wall_s - trip_s / 2
    return Clock(offset_s=offset_s, round_trip_s=best_s, is_monotone=monotonic == sorted(monotonic))


def _ports(world: World, addresses: Sequence[str]) -> tuple[list[str], list[dict[int, str]]]:
    """Why each node cannot listen, and which others it cannot reach; all listen at once, one after the other tries."""
    token, ranks = secrets.token_hex(8), range(world.num_workers)
    for rank in ranks:
        world.send(rank, "listen", address=addresses[rank], token=token)
    opened = world.wait_for("listening")
    targets = [[rank, addresses[rank], opened[rank]["port"]] for rank in ranks if opened[rank]["port"]]
    reached: list[dict[int, str]] = []
    for rank in ranks:
        world.send(rank, "reach", targets=[target for target in targets if target[0] != rank], token=token)
        found = world.wait_for("reached", [rank])[rank]["results"]
        reached.append({other: why for other, why, _ in found})
    world.broadcast("unlisten")
    world.wait_for("unlistened")
    return [opened[rank]["why"] for rank in ranks], reached
