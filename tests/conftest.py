"""Settings for the whole suite.

- One thread for each process, and no network: set before numpy or torch are imported, and inherited by workers.
- Property tests have no deadline: no test depends on speed.
- Files with slow tests start first, files of quick ones last: where two processes share the tests, both end together.
- `MCF_FORBID_SKIPS=1` (as in CI) turns every skip into a failure: a check that did not run is not a check.
"""

import os
from collections.abc import Generator

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

settings.register_profile("mcf", deadline=None, print_blob=True)
settings.load_profile("mcf")


@pytest.hookimpl(trylast=True)  # after the random order
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow, dist = ({item.path for item in items if item.get_closest_marker(name)} for name in ("slow", "dist"))
    items.sort(key=lambda item: (item.path not in slow, item.path not in dist))


Report = pytest.TestReport | pytest.CollectReport


def _forbid_skip(report: Report) -> None:
    if os.environ.get("MCF_FORBID_SKIPS") != "1" or not report.skipped or hasattr(report, "wasxfail"):
        return
    why = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"{report.nodeid}: skips are forbidden here (MCF_FORBID_SKIPS=1): {why}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _forbid_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _forbid_skip(report)
    return report
