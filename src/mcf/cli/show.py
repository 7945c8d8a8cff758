"""`mcf show`: a saved schedule in words, or judged; a trace as a page that replays it."""

import sys
from pathlib import Path

from mcf.cli.files import check_target, read_text, write_text
from mcf.cli.numbers import print_plan
from mcf.errors import UserError
from mcf.schedule import dump, grid, parse, verify
from mcf.study.replaypage import replay_page
from mcf.trace import read_trace


def show_command(file: str, *, is_verify: bool, is_play: bool = False, out: str | None = None) -> None:
    """Print the schedule's lines and its grid, or the verdict. Raises UserError kinds; LawError carries the grid."""
    if is_play:
        _play(file, out, is_verify)
        return
    if out is not None:
        raise UserError("got --out without --play: expected both, to write the page that replays a trace")
    sched = parse(read_text(file, what="a schedule saved by `mcf plan --save`"))
    if not is_verify:
        sys.stdout.writelines(f"{line}\n" for text in (dump(sched), grid(sched)) for line in text.split("\n"))
        return
    report = verify(sched)
    print("keeps the laws V1-V8")
    print_plan(sys.stdout, sched, report)


def _play(file: str, out: str | None, is_verify: bool) -> None:
    if is_verify:
        raise UserError("got --play and --verify: expected one of them; leave one out")
    target = out if out is not None else str(Path(file).with_suffix(".html"))
    check_target(target, what="the page")
    trace, sched = read_trace(file)
    verify(sched)  # a file may come from anywhere: what follows relies on the laws
    write_text(target, replay_page(trace, sched), what="the page")
    print(f"{target}: open it in a browser")
