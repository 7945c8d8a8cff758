"""Option values that both `run` and `plan` take, from text to what the engine expects."""

from collections.abc import Callable
from typing import TypeVar

from mcf.dist.torchrun import here, settle_workers
from mcf.engine.planner import AUTO
from mcf.errors import UnitError, UnknownNameError, UserError
from mcf.model import DTYPE_BYTES
from mcf.units import parse_bytes, parse_seconds, parse_tokens

T = TypeVar("T")


def read_budget(text: str | None) -> int | None:
    """Return --kv-memory in bytes, None where there is no limit. Raises UnitError."""
    return None if text is None else _named("--kv-memory", parse_bytes, text)


def read_chunk(text: str) -> int | str:
    """Return --chunk-tokens as a number of tokens or AUTO. Raises UnitError."""
    return AUTO if text == AUTO else read_tokens(text, "--chunk-tokens")


def read_tokens(text: str, option: str) -> int:
    """Return a number of tokens, at least one. Raises UnitError naming the option."""
    return _named(option, parse_tokens, text)


def read_timeout(text: str | None) -> float | None:
    """Return --timeout in seconds, None where there is no limit. Raises UnitError."""
    limit_s = None if text is None else _named("--timeout", parse_seconds, text)
    if limit_s == 0:
        raise UnitError("got 0 for --timeout: expected more than 0 s, for example 90 or 5m; leave it out for no limit")
    return limit_s


def _named(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except UnitError as error:
        raise UnitError(f"{option}: {error}") from None


def read_dtype(text: str) -> str:
    """Return --dtype where it is known. Raises UnknownNameError."""
    if text not in DTYPE_BYTES:
        raise UnknownNameError("dtype", text, DTYPE_BYTES)
    return text


def read_int(text: str, option: str) -> int:
    """Return a whole number. Raises UnitError naming the option."""
    try:
        return int(text)
    except ValueError:
        raise UnitError(f"got {text[:40]!r} for {option}: expected a whole number, for example 2") from None


def check_alone(what: str, **others: object) -> None:
    """Refuse options that were given (are not None) and mean nothing beside `what`. Raises UserError for the first."""
    for name, value in others.items():
        if value is not None:
            option = "FILE" if name == "file" else f"--{name.replace('_', '-')}"
            raise UserError(f"got {option} beside {what}: it means nothing there; leave one of them out")


def read_workers(text: str | None) -> int:
    """Return --workers as a number; where it is left out, as many as torchrun has started, else 2. Raises UserError."""
    return settle_workers(None if text is None else read_int(text, "--workers"), here())


def read_float(text: str, option: str) -> float:
    """Return a number. Raises UnitError naming the option."""
    try:
        return float(text)
    except ValueError:
        raise UnitError(f"got {text[:40]!r} for {option}: expected a number, for example 0.7") from None
