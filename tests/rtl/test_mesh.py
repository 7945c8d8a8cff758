"""The mesh in C++: the same as Amaranth's simulator beat by beat, and faults where they were asked for."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("amaranth", reason="pip install -e .[rtl]")


import mcf
from mcf.errors import RunError, UserError
from mcf.rtl.build.cxxrtl import SOURCES, compile_module, missing_compiler
from mcf.rtl.faults import FaultKind
from mcf.rtl.mesh.library import Mesh, Stop
from rtl_mesh import LAST, WORDS, Cross, Plan, beats, in_amaranth, in_cxxrtl, values_of, words_of

needs_compiler = pytest.mark.skipif(missing_compiler() is not None, reason=str(missing_compiler()))


@needs_compiler
def test_a_closed_mesh_says_so() -> None:
    mesh = Mesh()
    node = mesh.instance(compile_module(Cross(), name="cross"))
    source, sink = mesh.source((node, "inputs__0")), mesh.sink((node, "outputs__1"))
    mesh.close()
    mesh.close()
    for call in (
        mesh.run,
        mesh.records,
        lambda: mesh.cycle,
        lambda: mesh.push(source, words_of([1])),
        lambda: mesh.take(sink, WORDS),
        lambda: mesh.peek(node, "moved"),
        lambda: mesh.instance(compile_module(Cross(), name="cross")),
    ):
        with pytest.raises(RunError, match="this mesh is closed: expected no calls after close; make a new one"):
            call()


@needs_compiler
@pytest.mark.parametrize("stall", [0.0, 0.3, 0.7])
def test_cxxrtl_equals_amaranth_under_back_pressure(stall):
    ring = [((n, "outputs__0"), ((n + 1) % 3, "inputs__1")) for n in range(2)]
    plan = Plan(
        num_instances=3,
        links=[((n, "outputs__1"), ((n + 1) % 3, "inputs__0")) for n in range(2)] + ring,
        sources=[((0, "inputs__0"), 0.2, beats(60, 1)), ((0, "inputs__1"), 0.0, beats(60, 2))],
        sinks=[((2, "outputs__1"), stall), ((2, "outputs__0"), stall / 2)],
    )
    got = in_cxxrtl(compile_module(Cross(), name="cross"), plan, 400)
    assert got == in_amaranth(Cross, plan, 400)
    assert sum(len(taken) for taken in got) > 60


def through_a_link(*, faults=(), stall=0.0, **link):
    with Mesh() as mesh:
        library = compile_module(Cross(), name="cross")
        a, b = mesh.instance(library), mesh.instance(library)
        wire = mesh.link((a, "outputs__1"), (b, "inputs__0"), last_bit=128, **link)
        if stall:
            mesh.stall_link(wire, stall)
        for fault in faults:
            mesh.fault(wire, *fault)
        sent = beats(20, 3)
        mesh.push(mesh.source((a, "inputs__0")), words_of(sent))
        sink = mesh.sink((b, "outputs__1"))
        assert mesh.run(2000) is Stop.QUIET
        cycles, words = mesh.take(sink, WORDS)
        return sent, values_of(words), cycles, mesh.counts(wire), mesh.records()


@needs_compiler
def test_a_latency_delays_and_changes_nothing():
    plain, slow = through_a_link(), through_a_link(latency=9, depth=20)
    assert plain[1] == slow[1] == plain[0]
    assert int(slow[2][0]) == int(plain[2][0]) + 9
    assert slow[3].moved == 20


@needs_compiler
def test_a_link_that_stalls_loses_nothing_and_counts():
    sent, got, _, counts, records = through_a_link(latency=1, depth=2, stall=0.6)
    assert got == sent
    assert counts.stalled > 10
    assert records["num_beats"].tolist() == [5] * 4
    assert [values_of(np.append(r["header"], [0]).astype("<u4")[None])[0] for r in records] == [
        word % LAST for word in sent[::5]
    ]


@needs_compiler
@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ((FaultKind.FLIP, 7, 100), lambda sent: [b ^ (1 << 100) if i == 7 else b for i, b in enumerate(sent)]),
        ((FaultKind.DROP, 7), lambda sent: sent[:7] + sent[8:]),
        ((FaultKind.DOUBLE, 7), lambda sent: sent[:8] + sent[7:]),
        ((FaultKind.SILENCE, 0, 100), lambda sent: []),
    ],
)
def test_a_fault_changes_what_it_says(fault, change):
    sent, got, *_ = through_a_link(latency=1, depth=2, faults=[fault])
    assert got == change(sent)


@needs_compiler
def test_a_mesh_that_cannot_move_ends_and_says_so():
    with Mesh() as mesh:
        node = mesh.instance(compile_module(Cross(), name="cross"))
        source = mesh.source((node, "inputs__0"))
        mesh.push(source, words_of(beats(20, 1)))
        assert mesh.run(10_000) is Stop.QUIET
        assert mesh.cycle < 20
        assert mesh.pending(source) > 10
        assert mesh.peek(node, "moved") + mesh.pending(source) == 20


def test_without_a_compiler_one_line_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MCF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"g\+\+ is not installed: .*install it") as caught:
        compile_module(Cross(), name="cross")
    assert "\n" not in str(caught.value)


def test_compiled_hardware_is_kept_by_all_that_it_is_made_of() -> None:
    """From the hardware on, what its files import of `mcf.rtl` and `mcf.schedule` stands in the key too."""
    folder = Path(mcf.__file__).parent
    places = [folder / part for part in SOURCES]
    kept_by = {file for place in places for file in (place.glob("*.py") if place.is_dir() else [place])}
    seen, left = set(), [*(folder / "rtl" / "hdl").glob("*.py")]
    while left:
        file = left.pop()
        seen.add(file)
        names = re.findall(r"^from mcf\.((?:rtl|schedule)\.[\w.]+) import", file.read_text(), flags=re.MULTILINE)
        left += {folder / f"{name.replace('.', '/')}.py" for name in names} - seen - set(left)
    assert seen <= kept_by, f"expected in SOURCES of mcf.rtl.build.cxxrtl: {sorted(p.name for p in seen - kept_by)}"
    assert folder / "rtl" / "kv_ops.py" in seen
