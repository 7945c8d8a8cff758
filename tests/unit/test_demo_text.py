"""The demo document that the package carries."""

import re
from importlib.resources import files

TEXT = (files("mcf") / "data" / "ruth_jonah_daniel.txt").read_bytes().decode("ascii")


def test_ten_chapters_each_a_heading_and_a_paragraph() -> None:
    parts = TEXT.rstrip("\n").split("\n\n")
    assert parts[::2] == [
        *(f"{book}, chapter {number}" for book in ("Ruth", "Jonah") for number in range(1, 5)),
        "Daniel, chapter 1",
        "Daniel, chapter 6",
    ]
    assert len(parts) == 20
    assert all("\n" not in part and len(part) > 900 for part in parts[1::2])


def test_no_verse_numbers_and_no_stray_characters() -> None:
    prose = re.sub(r"^\w+, chapter \d+$", "", TEXT, flags=re.MULTILINE)
    assert not re.search(r"\d", prose)
    assert not re.search(r"[^\n -~]|  | $", prose, flags=re.MULTILINE)


def test_its_readme_gives_the_true_size_source_and_licence() -> None:
    readme = (files("mcf") / "data" / "README.md").read_text(encoding="utf-8")
    assert f"{len(TEXT):,} bytes, {len(TEXT.split()):,} words" in readme
    assert "public domain" in readme
    assert "bible-kjv-text" in readme
