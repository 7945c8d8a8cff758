"""The doctor's visit from door to door: start the workers, examine, judge, measure where all is well, leave."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mcf.dist.world import LOOPBACK, World, threads_per_worker
from mcf.engine.doctor.checks import check_all, has_error
from mcf.engine.doctor.examine import examine
from mcf.engine.doctor.measure import Measurement, measure
from mcf.engine.doctor.needs import needs_of
from mcf.engine.doctor.survey import Finding, Needs, Survey
from mcf.engine.gguf_cache import default_root
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
    command: Sequence[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Visit:
    """Examine `workers` workers of this machine and, with a model, whether it fits there. Loads no weights.

    With `is_measuring` the workers then join and measure, unless one has an error.
    `command` runs another worker program, for tests. Raises UserError for a model that cannot be, RunError kinds where
    a worker is lost.
    """
    shape, folder, needs = (None, None, None) if model is None else _model(model, dtype, kv_memory_bytes, on_progress)
    threads = threads_per_worker(workers)
    with World.start(workers, num_threads_per_worker=threads, command=command, is_joined=False) as world:
        nodes = examine(world, addresses=[LOOPBACK] * workers, cache=default_root(), folder=folder)
        survey = Survey(nodes=nodes, is_local=True, needs=needs)
        findings = check_all(survey)
        if not is_measuring or has_error(findings):
            return Visit(survey=survey, findings=findings)
        world.join()
        measured = measure(world, num_threads=survey.threads(), shape=shape)
        return Visit(survey=survey, findings=findings, measured=measured)


def _model(model: str, dtype: str, kv_bytes: int | None, progress: OnProgress | None) -> tuple[ModelShape, Path, Needs]:
    source = resolve(model, progress=progress)
    shape, folder = source.shape(dtype), source.folder.resolve()
    return shape, folder, needs_of(shape, folder, dtype=dtype, kv_bytes=kv_bytes)
