"""The exception family: exit codes, kinds, carried facts, one-line messages."""

import pytest

from mcf import errors
from mcf.errors import (
    InfeasibleError,
    LawError,
    McfError,
    RunError,
    ScheduleError,
    UnknownNameError,
    UserError,
    WorkerFailedError,
    WorkerLostError,
    WorkerSilentError,
)

FAMILY = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, McfError)]

SILENT_CURE = "see what has stopped it or frozen its machine, then run again"


def test_every_error_is_the_users_or_the_runs() -> None:
    assert len(FAMILY) == 19
    for kind in set(FAMILY) - {McfError}:
        assert issubclass(kind, UserError) != issubclass(kind, RunError), kind


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_exit_codes_and_builtin_bases(kind: type[McfError]) -> None:
    users = issubclass(kind, UserError)
    assert kind.exit_code == (2 if users else 1)
    assert issubclass(kind, ValueError) == users
    assert issubclass(kind, RuntimeError) == issubclass(kind, RunError)


@pytest.mark.parametrize("kind", FAMILY, ids=lambda kind: kind.__name__)
def test_the_module_docstring_draws_the_whole_family(kind: type[McfError]) -> None:
    assert kind.__name__ in (errors.__doc__ or "")


def test_an_unknown_name_suggests_the_nearest_and_lists_all() -> None:
    error = UnknownNameError("policy", "rign", ["ring", "gather", "full"])
    assert str(error) == "unknown policy 'rign': did you mean 'ring'? known are full, gather, ring"
    assert (error.name, error.suggestion) == ("rign", "ring")


def test_a_name_like_none_gets_no_suggestion() -> None:
    error = UnknownNameError("policy", "zzzz", iter(["ring", "full"]))
    assert str(error) == "unknown policy 'zzzz': known are full, ring"
    assert error.suggestion is None


def test_infeasible_carries_the_missing_bytes() -> None:
    assert InfeasibleError("too small", missing_bytes=7).missing_bytes == 7


def test_a_broken_law_names_the_law_and_the_row_and_keeps_the_grid_aside() -> None:
    error = LawError("V1", "node 2 sends a block it does not hold", row=5, grid="a\nb")
    assert str(error) == "V1 broken (row 5): node 2 sends a block it does not hold"
    assert (error.law, error.row, error.grid) == ("V1", 5, "a\nb")
    assert str(LawError("V3", "shares differ")) == "V3 broken: shares differ"
    assert isinstance(error, ScheduleError)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WorkerLostError(3, "prefill", "signal 9"), "worker 3 was lost during prefill: signal 9"),
        (
            WorkerSilentError(1, "decode", 2.54),
            f"worker 1 went silent during decode: no heartbeat for 2.5 s; {SILENT_CURE}",
        ),
        (WorkerFailedError(0, "load", "no file"), "worker 0 failed during load: no file"),
    ],
)
def test_worker_errors_name_rank_and_phase(error: WorkerLostError, message: str) -> None:
    assert str(error) == message
    assert error.rank == int(message.split()[1])
    assert error.phase in message
