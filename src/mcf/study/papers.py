"""The paper's tables and figures by name."""

from collections.abc import Callable

from mcf.study import fig3, fig4, fig5, table1, table2
from mcf.study.lab import Lab
from mcf.study.study import Study, joined

ALL = "all"
STUDIES: dict[str, Callable[[Lab], Study]] = {
    "table1": table1.study,
    "fig3": fig3.study,
    "fig4": fig4.study,
    "fig5": fig5.study,
    "table2": table2.study,
}
NAMES = (*STUDIES, ALL)


def run(name: str, lab: Lab | None = None) -> list[Study]:
    """Run one of NAMES; `all` gives all of them, in order."""
    lab = lab or Lab()
    return [make(lab) for key, make in STUDIES.items() if name in (key, ALL)]


def together(studies: list[Study]) -> Study:
    """One study for what was asked: itself, or all joined."""
    return studies[0] if len(studies) == 1 else joined(ALL, "All tables and figures", tuple(studies))
