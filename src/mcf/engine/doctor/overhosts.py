"""The doctor in a torchrun world: rank 0 lets the others in and examines them before they meet; the others obey."""

from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

from mcf.dist import hosts
from mcf.dist.fingerprint import fingerprint
from mcf.dist.guest import Guest, Own
from mcf.dist.torchrun import Place
from mcf.dist.witness import arrive_watched
from mcf.dist.world import World, threads_per_worker
from mcf.engine.source import resolve
from mcf.errors import McfError


def start_doctor(place: Place, mine: "Future[str]", *, interface: str | None, dtype: str) -> World:
    """Rank 0: return a world whose workers have said hello; `mine` is the fingerprint of the model here, "" for none.

    Raises UserError for an address that cannot be, RunError kinds for workers that do not come.
    """
    chosen, board = hosts.arrive(place, interface)
    hosts.check_address(place, chosen, board)
    gathering = hosts.Hosts(place, chosen, board, dtype=dtype, fingerprint=mine)
    try:
        threads = threads_per_worker(place.local_world_size)
        return World.start(place.world_size, num_threads_per_worker=threads, hosts=gathering, is_joined=False)
    finally:
        gathering.close()


def serve_doctor(place: Place, model: str | None, *, interface: str | None, dtype: str) -> NoReturn:
    """Rank 1 and above: obey the doctor until it leaves, then raise SystemExit(0). A model that is not here is told."""
    chosen, board, witness = arrive_watched(place, interface)
    threads = threads_per_worker(place.local_world_size)
    guest = Guest(
        place=place,
        interface=chosen,
        dtype=dtype,
        num_threads=threads,
        find_model=lambda: _own(model),
        witness=witness,
    )
    guest.serve(board)


def _own(model: str | None) -> Own:
    if model is None:
        return Own(folder=Path(), fingerprint="")
    try:
        folder = resolve(model).folder.resolve()
        return Own(folder=folder, fingerprint=fingerprint(folder))
    except McfError as error:
        return Own(folder=Path(), fingerprint=f"none: {error}")
