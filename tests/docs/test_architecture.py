"""docs/architecture.md: each package is listed once, each file of it once, and the laws are those of the code."""

import re

import pytest

from mcf.schedule import verify
from mcf.schedule.kv import STATE_NAMES, TRANSITIONS
from mcf.schedule.laws import LAWS
from mcf.schedule.steps import COLUMNS, KIND_NAMES
from pages import SRC, read, rows, section

PAGE = "docs/architecture.md"
ROOMS = sorted(
    {path.relative_to(SRC).parts[0].removesuffix(".py") for path in SRC.rglob("*.py")} - {"__init__", "__main__"}
)
PACKAGES = [name for name in ROOMS if (SRC / name).is_dir()]


@pytest.fixture(scope="module")
def files_section() -> str:
    return section(PAGE, "## Files, room by room in order of the flow")


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_is_listed_once(room: str) -> None:
    listed = [cells[0] for cells in rows(read(PAGE).split("\n## ")[2])]
    assert listed.count(f"`mcf.{room}`") == 1


@pytest.mark.parametrize("package", PACKAGES)
def test_each_file_of_a_package_is_listed_once(package: str, files_section: str) -> None:
    listed = [cells[0].strip("`") for cells in rows(section(PAGE, f"### `mcf.{package}`"))]
    there = [p.relative_to(SRC / package).as_posix() for p in (SRC / package).rglob("*.py")]
    assert sorted(listed) == sorted(name for name in there if not name.endswith("__init__.py")), (
        f"docs/architecture.md lists other files of mcf.{package} than there are: expected each once; edit the page"
    )
    assert files_section.count(f"### `mcf.{package}`") == 1


def test_single_file_rooms_are_named(files_section: str) -> None:
    for room in set(ROOMS) - set(PACKAGES):
        assert f"`{room}.py`" in files_section


def test_the_packages_stand_in_the_order_of_the_flow(files_section: str) -> None:
    drawn = re.findall(r"\w+", read(PAGE).split("## Rooms", 1)[1].split("\n\n", 2)[1])
    listed = re.findall(r"^### `mcf\.(\w+)`", files_section, flags=re.MULTILINE)
    assert listed == sorted(listed, key=drawn.index)


def test_the_laws_are_those_of_the_code() -> None:
    assert re.findall(r"^- (V\d) (.*)$", section(PAGE, "### Laws"), flags=re.MULTILINE) == list(LAWS.items())
    assert verify.__module__ == "mcf.schedule.verify"


def test_the_columns_and_kinds_are_those_of_the_code() -> None:
    line = re.search(r"^Columns: `([^`]*)`", read(PAGE), flags=re.MULTILINE)
    assert line is not None
    assert tuple(re.findall(r"\w+", line[1])) == COLUMNS
    first_cells = " ".join(cells[0] for cells in rows(section(PAGE, "## The schedule format").split("\n### ")[0]))
    assert set(re.findall(r"`(\w+)`", first_cells)) == set(KIND_NAMES.values())


def test_the_replica_states_are_those_of_the_code() -> None:
    text = " ".join(section(PAGE, "### Replica states").split("`")[1].split())
    drawn = {tuple(re.split(r": | -> ", rule)) for rule in text.split("; ")}
    assert drawn == {(event, STATE_NAMES[old], STATE_NAMES[new]) for (old, event), new in TRANSITIONS.items()}
