"""One laboratory for all tests of studies: what one test simulated, another looks up."""

from functools import cache

import pytest

from mcf.study import Lab, Study, papers


@cache
def lab() -> Lab:
    return Lab()


@cache
def study(name: str) -> Study:
    """One of the paper's tables and figures."""
    return papers.STUDIES[name](lab())


def share(patch: pytest.MonkeyPatch) -> None:
    """Let the command line use it too."""
    patch.setattr("mcf.study.papers.Lab", lab)
    patch.setattr("mcf.cli.sim.Lab", lab)
