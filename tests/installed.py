"""Tiny packages really installed: a module and its dist-info in a folder on sys.path."""

import importlib
import sys
from pathlib import Path

import pytest


def write_package(folder: Path, name: str, source: str, group: str, points: dict[str, str]) -> None:
    """Lay a package out as pip would: module, metadata, entry points."""
    (folder / f"{name}.py").write_text(source, encoding="utf-8")
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8")
    lines = "".join(f"{point} = {value}\n" for point, value in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")


def install(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, source: str, group: str, points: dict[str, str]
) -> None:
    """Install a package for one test."""
    write_package(folder, name, source, group, points)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # so that the test's module is forgotten with it
    del sys.modules[name]
    importlib.invalidate_caches()
