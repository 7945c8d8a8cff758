"""The world that PyTorch's launcher has made: what its variables say of this process. Imports nothing heavy.

The contract is torchrun's (docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"): RANK, WORLD_SIZE,
LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and TORCHELASTIC_USE_AGENT_STORE where the launcher itself
serves the store. Any launcher that sets the first four of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT will do.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from mcf.errors import UserError

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOCAL_WORKERS = 2  # where no launcher and no option says how many


@dataclass(frozen=True, kw_only=True)
class Place:
    """One process's place in a launcher's world. Rank 0 is the head and starts worker 0; rank r is worker r."""

    rank: int
    world_size: int
    local_world_size: int
    master_addr: str
    master_port: int
    has_agent_store: bool = False
    attempt: str = ""

    @property
    def is_guest(self) -> bool:
        """Whether this process serves a head elsewhere."""
        return self.rank > 0

    @property
    def spans_hosts(self) -> bool:
        """Whether the launcher was started more than once: usually on several hosts."""
        return self.local_world_size < self.world_size


def place_from(env: Mapping[str, str]) -> Place | None:
    """Return this process's place, None outside a launcher's world. Raises UserError for values that cannot be."""
    if not all(env.get(name) for name in NEEDED):
        return None
    world_size = _number(env, "WORLD_SIZE", 1, 1024)
    return Place(
        rank=_number(env, "RANK", 0, world_size - 1),
        world_size=world_size,
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", 1, world_size) if env.get("LOCAL_WORLD_SIZE") else 1,
        master_addr=env["MASTER_ADDR"],
        master_port=_number(env, "MASTER_PORT", 1, 65535),
        has_agent_store=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=f"{env.get('TORCHELASTIC_RUN_ID', '')}/{env.get('TORCHELASTIC_RESTART_COUNT', '')}",
    )


def here() -> Place | None:
    """Return this process's place by its own environment."""
    return place_from(os.environ)


def settle_workers(given: int | None, place: Place | None) -> int:
    """Return the number of workers: what was given, else one for each process of the world, else 2.

    Raises UserError where what was given is not what the launcher has started.
    """
    if place is None:
        return LOCAL_WORKERS if given is None else given
    if given is not None and given != place.world_size:
        raise UserError(
            f"got {given} workers in a torchrun world of {place.world_size} (WORLD_SIZE): expected one worker for each "
            "process; leave the number of workers out, or start as many processes"
        )
    return place.world_size


def _number(env: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = env[name]
    if not text.isdecimal() or not least <= int(text) <= most:
        raise UserError(
            f"the variable {name} is {text!r}: expected a number from {least} to {most}, as torchrun sets it; "
            "start with torchrun, or unset RANK and WORLD_SIZE to run on this machine alone"
        )
    return int(text)
