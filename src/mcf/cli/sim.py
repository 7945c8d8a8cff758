"""`mcf sim`: the paper's tables and figures, or one's own cases, in model time."""

import json
import sys
from pathlib import Path

from mcf import policies
from mcf.cli.files import check_target
from mcf.cli.outcomes import print_study
from mcf.cli.tables import print_columns
from mcf.cluster import NAMES as TOPOLOGIES
from mcf.engine.source import read_shape
from mcf.errors import UnknownNameError, UserError
from mcf.model import SHAPE_NAMES, ModelShape
from mcf.sim import NAMES as PROFILES
from mcf.sim import load_profile
from mcf.study import Lab, Study, papers
from mcf.study.experiment import Experiment, load_experiment
from mcf.trace import write_perfetto


def sim_command(name: str, *, out: str | None, is_json: bool, profile: str | None, save_trace: str | None) -> None:
    """Simulate, print, and write the files. Raises UserError kinds; a case that cannot run is a row that says why."""
    folder = None if out is None else make_folder(out)
    if save_trace is not None:
        check_target(save_trace, what="the trace")
    if name.endswith(".toml"):
        studies = [_own(name, profile, save_trace)]
    else:
        studies = _papers(name, profile, save_trace)
    found = papers.together(studies)
    if is_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    else:
        for study in studies:
            print_study(sys.stdout, study)
    if folder is not None:
        from mcf.cli.plots import write_files  # matplotlib: a second, and only files need it

        names = write_files(folder, found)
        print(f"written to {folder}: {', '.join(names)}", file=sys.stderr)


def make_folder(out: str) -> Path:
    """Make the folder for files. Raises UserError."""
    folder = Path(out).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {out!r} ({error.strerror or error}): expected a folder, or a name for a new one"
        ) from None
    return folder


def _papers(name: str, profile: str | None, save_trace: str | None) -> list[Study]:
    if name not in papers.NAMES:
        raise UnknownNameError("table or figure", name, (*papers.NAMES, "FILE.toml"))
    for option, value in (("--profile", profile), ("--save-trace", save_trace)):
        if value is not None:
            raise UserError(
                f"got {option} for {name}: expected it with a TOML file of one's own; the paper's tables and figures "
                "have settings of their own (docs/simulator.md)"
            )
    return papers.run(name)


def _own(name: str, profile: str | None, save_trace: str | None) -> Study:
    experiment = load_experiment(name, read_shape=_shape, profile=profile)
    lab = Lab()
    if save_trace is not None:
        _save(experiment, lab, save_trace)
    rows = tuple(lab.row(case, experiment.name) for case in experiment.cases)
    profiles = ", ".join(dict.fromkeys(case.profile.label for case in experiment.cases))
    settings = f"model {experiment.cases[0].shape.name}; seconds are model time on {profiles}."
    return Study(name=experiment.name, title=experiment.name, settings=settings, rows=rows)


def _save(experiment: Experiment, lab: Lab, file: str) -> None:
    if len(experiment.cases) != 1:
        raise UserError(f"got --save-trace for {len(experiment.cases)} cases: expected one; shorten the lists")
    ran = lab.run(experiment.cases[0])
    write_perfetto(file, ran.result.trace, ran.schedule)
    print(f"trace: {file} (see it with mcf show --play {file})", file=sys.stderr)


def _shape(model: str) -> ModelShape:
    return read_shape(model, dtype="bfloat16")


def list_command() -> None:
    """Print what `mcf sim run` knows by name."""
    print_columns(
        sys.stdout,
        ("profile", "TFLOP/s", "memory GB/s", "link Gbit/s", "latency us", "a machine?"),
        [_profile_row(name) for name in PROFILES],
    )
    print()
    for what, names in (
        ("tables and figures", papers.NAMES),
        ("policies", policies.NAMES),
        ("models", SHAPE_NAMES),
        ("topologies", TOPOLOGIES),
    ):
        print(f"{what}: {', '.join(names)}")


def _profile_row(name: str) -> list[str]:
    p = load_profile(name)
    numbers = (p.flops_s / 1e12, p.memory_bytes_s / 1e9, p.link_bytes_s * 8 / 1e9, p.link_latency_s * 1e6)
    return [
        name,
        *(f"{value:.4g}" for value in numbers),
        "yes" if p.physical else f"no: {p.clock_hz / 1e6:g} MHz assumed" if p.clock_hz else "no: fitted",
    ]
