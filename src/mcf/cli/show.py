"""`mcf show`: a saved schedule in words, or judged."""

import sys

from mcf.cli.files import read_text
from mcf.cli.numbers import print_plan
from mcf.schedule import dump, grid, parse, verify


def show_command(file: str, *, is_verify: bool) -> None:
    """Print the schedule's lines and its grid, or the verdict. Raises UserError kinds; LawError carries the grid."""
    sched = parse(read_text(file, what="a schedule saved by `mcf plan --save`"))
    if not is_verify:
        sys.stdout.writelines(f"{line}\n" for text in (dump(sched), grid(sched)) for line in text.split("\n"))
        return
    report = verify(sched)
    print("keeps the laws V1-V8")
    print_plan(sys.stdout, sched, report)
