"""The doctor's visit from door to door: start the workers, examine, judge, measure where all is well, leave."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mcf.cache import cache_root
from mcf.dist.fingerprint import fingerprint
from mcf.dist.torchrun import here
from mcf.dist.world import World, threads_per_worker
from mcf.engine.doctor.checks import check_all, has_error
from mcf.engine.doctor.examine import examine
from mcf.engine.doctor.measure import Measurement, measure
from mcf.engine.doctor.needs import needs_of
from mcf.engine.doctor.overhosts import serve_doctor, start_doctor
from mcf.engine.doctor.survey import Finding, Needs, Survey
from mcf.engine.hosts import check_interface
from mcf.engine.source import resolve
from mcf.model import ModelShape

OnProgress = Callable[[str, float, float], None]


@dataclass(frozen=True, kw_only=True)
class Visit:
    """What a visit found."""

    survey: Survey
    findings: list[Finding]
    measured: Measurement | None = None

    @property
    def is_well(self) -> bool:
        """Whether no node has an error."""
        return not has_error(self.findings)


def visit(
    model: str | None,
    *,
    workers: int,
    kv_memory_bytes: int | None = None,
    dtype: str = "float32",
    is_measuring: bool = False,
    interface: str | None = None,
    command: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Visit:
    """Examine `workers` workers and, with a model, whether it fits there. Loads no weights.

    The workers are processes of this machine, or in a torchrun world its ranks; there every rank calls this, and all
    but rank 0 raise SystemExit(0) in the end. With `is_measuring` the workers then join and measure, unless one has an
    error. `interface` is that of `mcf.load`, `command` runs another worker program, for tests.

    Raises UserError for a model or an address that cannot be, RunError kinds where a worker is lost.
    """
    place = here()
    check_interface(interface, place)
    if place is not None and place.is_guest:
        serve_doctor(place, model, interface=interface, dtype=dtype)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(_look_for, model, dtype, kv_memory_bytes, on_progress)
        if place is None or place.world_size == 1:
            found.result()  # what is wrong with the model is said before anything starts
            threads = threads_per_worker(workers)
            world = World.start(workers, num_threads_per_worker=threads, command=command, is_joined=False)
        else:
            world = start_doctor(
                place, pool.submit(lambda: found.result().fingerprint), interface=interface, dtype=dtype
            )
        with world:
            return _visit(world, found.result(), is_measuring=is_measuring)


def _visit(world: World, model: "_Model", *, is_measuring: bool) -> Visit:
    nodes = examine(world, cache=cache_root(), folder=model.folder)
    survey = Survey(nodes=nodes, is_local=not world.is_over_hosts, needs=model.needs)
    findings = check_all(survey)
    if not is_measuring or has_error(findings):
        return Visit(survey=survey, findings=findings)
    world.join()
    measured = measure(world, num_threads=survey.threads(), shape=model.shape)
    return Visit(survey=survey, findings=findings, measured=measured)


@dataclass(frozen=True, kw_only=True)
class _Model:
    """The model on this machine; nothing where none is asked for."""

    shape: ModelShape | None = None
    folder: Path | None = None
    needs: Needs | None = None
    fingerprint: str = ""


def _look_for(model: str | None, dtype: str, kv_bytes: int | None, progress: OnProgress | None) -> _Model:
    if model is None:
        return _Model()
    source = resolve(model, progress=progress)
    shape, folder = source.shape(dtype), source.folder.resolve()
    needs = needs_of(shape, folder, dtype=dtype, kv_bytes=kv_bytes)
    return _Model(shape=shape, folder=folder, needs=needs, fingerprint=fingerprint(folder))
