"""The project's pages as tests see them: text, fenced blocks, table rows."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "mcf"
DOCS = ROOT / "docs"
# Every page that people read; what lies in `src` describes data, not commands.
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block: the page it stands in, its language, its text."""

    page: str
    language: str
    text: str


def read(name: str) -> str:
    """Return a page by its path from the root."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(path: Path) -> list[Block]:
    """List the fenced blocks of a page."""
    page = path.relative_to(ROOT).as_posix()
    found = _FENCE.finditer(path.read_text(encoding="utf-8"))
    return [Block(page=page, language=match[1], text=match[2]) for match in found]


def commands(block: Block) -> list[str]:
    """List the commands of a shell block: one a line, continued by a backslash, comments and prompts cut off."""
    lines = block.text.replace("\\\n", " ").splitlines()
    bare = [re.sub(r"(^|\s)#.*", "", line).strip() for line in lines]
    return [" ".join(line.split()) for line in bare if line]


def section(page: str, heading: str) -> str:
    """Return what stands under a heading, up to the next heading of the same or a higher level."""
    level = len(heading) - len(heading.lstrip("#"))
    after = read(page).split(f"\n{heading}\n", 1)[1]
    return re.split(rf"^#{{1,{level}}} ", after, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> list[list[str]]:
    """List the cells of each Markdown table row in a text, headers and rules left out."""
    tables = re.findall(r"(?:^\|.*\|$\n?)+", text, flags=re.MULTILINE)
    lines = [line for table in tables for line in table.strip().splitlines()[2:]]
    return [[cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
