"""The way in and the only way out: what the commands raise becomes one line on stderr and an exit code.

Exit codes: 0 done; 1 the run failed (a RunError, an internal error), or nobody reads the output any more (quiet); 2 a
mistake in what was given (a UserError, or a command line that cannot be read); 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

from mcf.cli.signals import GRACE_S, QuickEnd
from mcf.dist.torchrun import here
from mcf.errors import LawError, McfError, UserError

PROGRAM = "mcf"
_JOINING = (
    ("run",),
    ("doctor",),
    ("bench", "prefill"),
    ("bench", "decode"),
)  # all processes of a torchrun world take part
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line (default: this process's own) and return the exit code; raises nothing."""
    args = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    if sys.stdout is None:  # started with it closed, as in `mcf run ... >&-`
        return _say_error("stdout is closed: expected an open one for the answer; send it to /dev/null", code=2)
    with QuickEnd(grace_s=GRACE_S if leads_a_world(args) else 0.0) as end:
        try:
            return _invoke(args)
        except KeyboardInterrupt:
            end.say()
            return end.exit_code
        except SystemExit as leave:  # a worker of a torchrun world, at the end of the run
            return int(leave.code or 0)
        except BrokenPipeError:
            _forget_stdout()
            return 1
        except Exception as error:
            return _report(error, is_debug="--debug" in args)


def is_mute(args: Sequence[str]) -> bool:
    """Return whether this is a torchrun process other than rank 0 and the command is one that rank 0 does alone."""
    place = here()
    return place is not None and place.is_guest and not _is_joining(args)


def leads_a_world(args: Sequence[str]) -> bool:
    """Return whether this is rank 0 of a torchrun world of several processes, and all take part in the command."""
    with suppress(UserError):  # of a world's variables: the command itself says so
        place = here()
        return place is not None and not place.is_guest and place.world_size > 1 and _is_joining(args)
    return False


def _is_joining(args: Sequence[str]) -> bool:
    return any(tuple(args[: len(way)]) == way for way in _JOINING)


def _invoke(args: list[str]) -> int:
    if is_mute(args):
        return 0
    import typer  # here, where signals are minded already: it and what the commands need take a while

    from mcf.cli.app import app

    command = typer.main.get_command(app)
    try:
        with command.make_context(PROGRAM, args) as context:
            command.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    finally:
        sys.stdout.flush()  # here, where a reader that has left can still be told from a failure
    return 0


def _report(error: Exception, *, is_debug: bool) -> int:
    if usage := _usage_line(error):
        return _say_error(usage, code=2)
    if is_debug:
        traceback.print_exception(error)
    if isinstance(error, McfError):
        grid = error.grid if isinstance(error, LawError) else ""
        return _say_error(str(error), grid=grid, code=error.exit_code)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return _say_error("no space left on the device: expected room for what is written; free some", code=1)
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return _say_error(what, kind="internal error", hint="" if is_debug else "; run again with --debug", code=1)


def _say_error(message: str, *, code: int, kind: str = "error", hint: str = "", grid: str = "") -> int:
    with suppress(BrokenPipeError):
        print(f"{kind}: {one_line(message)}{hint}", file=sys.stderr)
        if grid:
            print(grid, file=sys.stderr)
    return code


def _usage_line(error: Exception) -> str:
    """Return what typer has against the command line, "" for any other error."""
    if not hasattr(error, "format_message"):  # typer's usage errors have no public name
        return ""
    near, name = getattr(error, "possibilities", None), getattr(error, "option_name", "")
    message = f"no such option {name}: did you mean {near[0]}?" if near else error.format_message().rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]} (see `{context.command_path if context else PROGRAM} --help`)"


def one_line(text: str) -> str:
    """Return the text on one line, without characters that steer a terminal."""
    return _UNPRINTABLE.sub(" ", text).strip()


def _forget_stdout() -> None:
    """Point stdout elsewhere, so that the interpreter's last flush does not complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
