"""The exception family of MCF.

    McfError                      base; carries `exit_code`
    |- UserError (ValueError)     exit code 2: what came, what was expected, what to do
    |  |- UnitError               a quantity that cannot be parsed
    |  |- UnknownNameError        an unknown policy, preset or topology; "did you mean"
    |  |- PlugInError             a policy or topology of another package that cannot be loaded, or fails
    |  |- ToolError               a tool that is missing, or of another version than expected
    |  |- ModelError              a model file or folder that cannot be used
    |  |- PromptError             an empty prompt, or one longer than the model's window
    |  |- InfeasibleError         a budget that cannot hold the plan; carries `missing_bytes`
    |  |- ScheduleError           a schedule that cannot be read or built
    |     |- LawError             a schedule that breaks a law; carries `law`, `row` and `grid`
    |- RunError (RuntimeError)    exit code 1: the run itself failed
       |- WorkerLostError         a worker process died; carries `rank` and `phase`
       |- WorkerSilentError       a worker sends no heartbeats; carries `rank` and `phase`
       |- WorkerFailedError       a worker reported an error of its own
       |  |- WorkerMemoryError    ... that it could not get the memory it asked for
       |- RequestTimeoutError     a request took longer than its time limit; carries `phase`
       |- RequestCancelledError   a request was cancelled by its caller; carries `phase`, `text` and `token_ids`
       |- TransportError          a peer's link broke or timed out

A message is one line: what came, what was expected, what to do. A grid, where there is one, is kept beside it.
"""

import difflib
from collections.abc import Iterable


class McfError(Exception):
    """Base of every error that MCF raises on purpose."""

    exit_code = 1


class UserError(McfError, ValueError):
    """A mistake in what the user gave: one clear line, exit code 2."""

    exit_code = 2


class UnitError(UserError):
    """A quantity that cannot be parsed."""


class UnknownNameError(UserError):
    """A name that is not known; suggests the nearest known one."""

    def __init__(self, what: str, name: str, known: Iterable[str], *, or_else: str = "") -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}? " if near else ""
        rest = f", or {or_else}" if or_else else ""
        super().__init__(f"unknown {what} {name!r}: {hint}known are {', '.join(names)}{rest}")
        self.name = name
        self.suggestion = near[0] if near else None


class PlugInError(UserError):
    """A policy or topology of another package that cannot be loaded, fails, or returns something else."""


class ToolError(UserError):
    """A tool that is missing, or of another version than expected."""


class ModelError(UserError):
    """A model file or folder that is missing, broken, unsafe or not supported."""


class PromptError(UserError):
    """A prompt that cannot be run: empty, or longer than the model's window."""


class InfeasibleError(UserError):
    """A memory budget that cannot hold the plan."""

    def __init__(self, message: str, *, missing_bytes: int) -> None:
        super().__init__(message)
        self.missing_bytes = missing_bytes


class ScheduleError(UserError):
    """A schedule that cannot be read or built."""


class LawError(ScheduleError):
    """A schedule that breaks one of the laws V1..V8."""

    def __init__(self, law: str, message: str, *, row: int | None = None, grid: str = "") -> None:
        where = "" if row is None else f" (row {row})"
        super().__init__(f"{law} broken{where}: {message}")
        self.law = law
        self.what = message
        self.row = row
        self.grid = grid


class RunError(McfError, RuntimeError):
    """A run that failed: exit code 1."""


class WorkerLostError(RunError):
    """A worker process died."""

    def __init__(self, rank: int, phase: str, why: str, *, host: str = "") -> None:
        super().__init__(f"{_worker(rank, host)} was lost during {phase}: {why}")
        self.rank = rank
        self.phase = phase


class WorkerSilentError(RunError):
    """A worker process is alive but sends no heartbeats."""

    def __init__(self, rank: int, phase: str, silent_s: float, *, host: str = "") -> None:
        super().__init__(
            f"{_worker(rank, host)} went silent during {phase}: no heartbeat for {silent_s:.1f} s; see what has "
            "stopped it or frozen its machine, then run again"
        )
        self.rank = rank
        self.phase = phase


class WorkerFailedError(RunError):
    """A worker reported an error of its own and cannot go on."""

    def __init__(self, rank: int, phase: str, why: str, *, host: str = "") -> None:
        super().__init__(f"{_worker(rank, host)} failed during {phase}: {why}")
        self.rank = rank
        self.phase = phase


class WorkerMemoryError(WorkerFailedError):
    """A worker could not get the memory it asked for."""


class RequestTimeoutError(RunError):
    """A request took longer than its time limit."""

    def __init__(self, phase: str, limit_s: float) -> None:
        super().__init__(f"not done within its time limit of {limit_s:g} s: it ended during {phase}; allow more time")
        self.phase = phase


class RequestCancelledError(RunError):
    """A request was cancelled by its caller; `text` and `token_ids` are what had been generated by then."""

    def __init__(self, phase: str, *, text: str, token_ids: list[int]) -> None:
        super().__init__(f"cancelled by the caller during {phase}, with {len(token_ids)} tokens generated")
        self.phase = phase
        self.text = text
        self.token_ids = token_ids


class TransportError(RunError):
    """A link to a peer broke or timed out."""


def _worker(rank: int, host: str) -> str:
    return f"worker {rank} on {host}" if host else f"worker {rank}"
