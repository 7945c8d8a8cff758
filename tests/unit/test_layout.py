"""The house keeps its rules: rooms, the one seam of torch.distributed, nothing on a wire or a disk that runs code."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "mcf"
SEAM = "dist/transport.py"
FILES = sorted(SRC.rglob("*.py"))
NUMPY_ALONE = [
    *("errors", "units", "cache", "model", "cluster", "schedule"),
    *("trace", "mars", "policies", "sim", "ref", "study"),
]
HEAVY = {"torch", "transformers", "amaranth", "fastapi", "rich", "typer"}
PICKLING = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "multiprocessing"}


def names(path: Path) -> Iterator[str]:
    """Every dotted name that a file imports or spells out (`torch.distributed`, `torch.load`, ...)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)


def keywords(path: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg:
            yield node.arg, ast.unparse(node.value)


def room(path: Path) -> str:
    return path.relative_to(SRC).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SRC).as_posix())
class TestEachFile:
    def test_only_the_transport_names_torch_distributed(self, path: Path) -> None:
        users = [name for name in names(path) if re.match(r"torch\.(distributed|_C\._distributed)", name)]
        assert not users or path.relative_to(SRC).as_posix() == SEAM

    def test_nothing_is_pickled(self, path: Path) -> None:
        assert not {name for name in names(path) if name.split(".")[0] in PICKLING}
        assert not {name for name in names(path) if "_object" in name.split(".")[-1] and "list" in name}
        assert not [name for name in names(path) if re.search(r"(broadcast|gather|scatter|send|recv)_object", name)]

    def test_nothing_that_is_loaded_can_run_code(self, path: Path) -> None:
        assert not {name for name in names(path) if name in ("torch.load", "torch.save", "numpy.load", "np.load")}
        assert [value for key, value in keywords(path) if key == "trust_remote_code" and value != "False"] == []
        assert [value for key, value in keywords(path) if key in ("allow_pickle", "shell") and value != "False"] == []

    def test_planning_needs_numpy_alone(self, path: Path) -> None:
        if room(path) in NUMPY_ALONE:
            assert not HEAVY & {name.split(".")[0] for name in names(path)}


def test_the_low_rooms_import_without_torch_or_the_terminal() -> None:
    built = [name for name in NUMPY_ALONE if (SRC / name / "__init__.py").exists() or (SRC / f"{name}.py").exists()]
    lines = [f"import mcf.{name}" for name in built]
    code = "\n".join(["import sys, mcf", *lines, f"print(sorted({HEAVY!r} & set(sys.modules)))"])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_the_contract_lists_the_rooms_of_the_architecture_page() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [re.findall(r"\w+", layer) for layer in contracts[0]["layers"]]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = page.split("## Rooms", 1)[1].split("\n\n", 2)[1]
    drawn = [re.findall(r"\w+", line.split("(")[0]) for line in block.splitlines()]
    assert layers == drawn
    assert contracts[1]["source_modules"] == [f"mcf.{name}" for name in NUMPY_ALONE]
    assert set(contracts[1]["forbidden_modules"]) == HEAVY


def test_every_room_that_exists_is_on_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {room(path) for path in FILES} - {"__init__", "__main__"}
    assert {name for name in rooms if f"`mcf.{name}`" not in page} == set()


def test_the_package_says_that_it_is_typed() -> None:
    assert (SRC / "py.typed").exists()
