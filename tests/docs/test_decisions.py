"""docs/decisions: records are numbered without gaps, have the same three parts, are short, and are in the index."""

import re
from pathlib import Path

import pytest

from pages import DOCS, SRC, read

RECORDS = sorted((DOCS / "decisions").glob("0*.md"))
PARTS = ["Context", "Choice", "Consequences"]


def test_the_numbers_have_no_gaps() -> None:
    assert [int(path.name[:4]) for path in RECORDS] == list(range(1, len(RECORDS) + 1))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name[:4])
def test_each_record_has_its_parts_and_is_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*(\w+)\.\*\* ", text, flags=re.MULTILINE) == PARTS
    assert 80 < len(text.split()) < 220
    title = re.fullmatch(r"# (\d+)\. (.+)", text.splitlines()[0])
    assert title is not None
    assert f"- [{int(title[1]):04}]({path.name}) {title[2]}\n" in read("docs/decisions/README.md")


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name[:4])
def test_the_files_that_a_record_names_exist(path: Path) -> None:
    for name in re.findall(r"`([a-z_]+/[a-z_]+\.py)`", path.read_text(encoding="utf-8")):
        assert (SRC / name).exists(), f"{path.name} names {name}"
