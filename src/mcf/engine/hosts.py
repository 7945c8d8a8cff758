"""Workers from a torchrun world: what rank 0 does in place of starting them all, and what the other ranks do."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import NoReturn

from mcf.dist import hosts
from mcf.dist.fingerprint import fingerprint
from mcf.dist.guest import Guest, Own
from mcf.dist.limit import Limit
from mcf.dist.nursery import lent_one
from mcf.dist.torchrun import Place
from mcf.dist.witness import arrive_watched
from mcf.dist.world import World, threads_per_worker
from mcf.engine.gguf_parts import Progress
from mcf.engine.source import ModelSource, resolve
from mcf.engine.tokens import Tokenizer, load_tokenizer
from mcf.errors import UserError


def check_interface(interface: str | None, place: Place | None) -> None:
    """Refuse an interface where there is nothing to carry. Raises UserError."""
    if interface is not None and place is None:
        raise UserError(
            f"got interface {interface!r} outside a torchrun world: workers on this machine meet on loopback alone; "
            "leave it out, or start with torchrun"
        )


def start_over_hosts(
    place: Place,
    model: str,
    pool: ThreadPoolExecutor,
    *,
    interface: str | None,
    dtype: str,
    threads: int | None,
    fault: str | None,
    limit: Limit | None,
    progress: Progress,
) -> tuple[ModelSource, Future[Tokenizer], World]:
    """Rank 0: start worker 0, let the others in, and meanwhile find the model here too.

    Raises UserError and RunError kinds; no process of this host is left then, and those of other hosts end themselves.
    """
    found = pool.submit(_find, model, dtype, progress)
    mine = pool.submit(lambda: fingerprint(found.result().folder))
    tokenizer = pool.submit(lambda: load_tokenizer(found.result()))
    chosen, board = hosts.arrive(place, interface)
    hosts.check_address(place, chosen, board)
    gathering = hosts.Hosts(place, chosen, board, dtype=dtype, fingerprint=mine)
    progress("load", 0, place.world_size)
    try:
        own = threads or threads_per_worker(place.local_world_size)
        world = World.start(
            place.world_size,
            num_threads_per_worker=own,
            fault=fault,
            limit=limit,
            hosts=gathering,
            nursery=lent_one(),
        )
    finally:
        gathering.close()
    return found.result(), tokenizer, world


def serve(
    place: Place,
    model: str,
    *,
    interface: str | None,
    dtype: str,
    threads: int | None,
    fault: str | None,
    progress: Progress,
) -> NoReturn:
    """Rank 1 and above: be a worker until the head is done, then raise SystemExit(0). Raises as `start_over_hosts`."""
    chosen, board, witness = arrive_watched(place, interface, fault)

    def find() -> Own:
        source = _find(model, dtype, progress)
        return Own(folder=source.folder.resolve(), fingerprint=fingerprint(source.folder))

    own = threads or threads_per_worker(place.local_world_size)
    guest = Guest(place=place, interface=chosen, dtype=dtype, num_threads=own, find_model=find, witness=witness)
    guest.serve(board)


def _find(model: str, dtype: str, progress: Progress) -> ModelSource:
    source = resolve(model, progress=progress)
    source.shape(dtype)  # refuses what it cannot run
    return source
