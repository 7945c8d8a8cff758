"""What must hold of the paper's tables and figures, whatever the fit: volumes, order, bumps, flags."""

import re
from itertools import pairwise

import pytest

from lab import lab, study
from mcf.mars import C_ring, M_chunk
from mcf.schedule import verify
from mcf.study import FLAGS, Item, Row, paper
from mcf.study.items import FITTED, IMPOSSIBLE, NOT_EXPLAINED, REPRODUCED
from mcf.study.papers import STUDIES
from mcf.study.table1 import implied

EXACT = {2: 1.9378, 4: 2.9947, 8: 3.6994, 16: 4.4040}  # decimal GB
every_study = pytest.mark.parametrize("name", STUDIES)


def rows(name: str, profile: str = "paper16k-fitted") -> dict[tuple[str, int], Row]:
    return {(row.policy, row.nodes): row for row in study(name).rows if row.profile == profile}


def items(name: str, start: str) -> list[Item]:
    found = [item for item in study(name).items if item.name.startswith(start)]
    assert found, f"no item of {name} starts with {start!r}"
    return found


# --- table 1 ---


@pytest.mark.parametrize("policy", ["ring", "zigzag"])
@pytest.mark.parametrize("nodes", paper.NODES)
def test_ring_volumes_are_exact_and_come_from_a_verified_schedule(policy: str, nodes: int) -> None:
    row = rows("table1")[policy, nodes]
    ran = lab().run(paper.case(policy, nodes))
    assert row.traffic_bytes == sum(verify(ran.schedule).traffic.values()) == sum(ran.result.traffic.values())
    assert row.traffic_bytes == C_ring(M_chunk=M_chunk(256 * nodes, 7168), N=nodes, C=64 // nodes)
    assert round(row.traffic_bytes / 1e9, 4) == EXACT[nodes]
    assert row.flag is not None
    assert row.flag["traffic_bytes"] == REPRODUCED


def test_the_order_is_the_printed_one_and_the_ratio_in_its_band() -> None:
    took = {key: row.ttft_s for key, row in rows("table1").items()}
    for n in paper.NODES:
        assert took["mars-paper", n] < took["zigzag", n] <= took["ring", n]
        assert 1.8 <= took["ring", n] / took["mars-paper", n] <= 3.2


def test_the_fit_is_the_simulators_own_and_says_how_good_it_is() -> None:
    fitted = [item for item in items("table1", "TTFT, ") if item.flag == FITTED]
    assert len(fitted) == 12
    assert {item.published for item in fitted} == {s for row in paper.TTFT_S.values() for s in row.values()}
    squares = [abs(item.residual or 1) for item in fitted]
    assert max(squares[:4]) < 0.10  # MARS
    assert max(squares) < 0.25
    assert not lab().run(paper.case("ring", 2)).case.profile.physical


def test_volumes_of_mars_are_not_explained_and_the_proof_stands_beside_them() -> None:
    for item in items("table1", "volume, MARS"):
        assert item.flag == NOT_EXPLAINED
        assert "M(r-1) + M(N-r) = M(N-1)" in item.arithmetic
    for n in paper.NODES:
        mars, ring = rows("table1")["mars-paper", n].traffic_bytes, rows("table1")["ring", n].traffic_bytes
        assert mars is not None
        assert ring is not None
        assert mars < ring


def test_published_times_ask_too_much_of_the_described_node() -> None:
    found = items("table1", "TTFT on the described boards")
    assert {item.flag for item in found} == {IMPOSSIBLE}
    asked = [float(match[1]) for item in found if (match := re.search(r"= ([\d.]+) TFLOP/s per node", item.arithmetic))]
    assert len(asked) == 12
    assert min(asked) > 2.0  # the whole device
    assert "6.66 TFLOP/s" in implied(0.62, 16)


def test_16k_on_16_boards_takes_41_seconds_with_every_balanced_schedule() -> None:
    board = rows("table1", "kr260-physical")
    for policy in ("mars-paper", "zigzag", "gather", "full"):
        row = board[policy, 16]
        assert row.ttft_s == pytest.approx(41.3, abs=0.2)
        assert row.limit == "compute"
    [item] = items("table1", "16K at N = 16 on the described boards")
    assert item.flag == REPRODUCED
    assert "no schedule of KV changes it" in item.arithmetic


# --- figures ---


def test_figure_3_has_a_verdict_for_each_claim_on_each_number_of_nodes() -> None:
    flags = {item.name: item.flag for item in study("fig3").items}
    assert flags["N = 4: MCF has the lowest TTFT for medium and long prompts (2K to 8K)"] == REPRODUCED
    assert flags["N = 4: MCF is worse on very short prompts"] == REPRODUCED
    assert len([name for name in flags if name.startswith("N = ")]) == 12


def test_figure_4_bumps_and_returns_to_owner_only() -> None:
    for n in (8, 16):
        assert {item.flag for item in items("fig4", f"N = {n}")} == {REPRODUCED}
        row = next(row for row in study("fig4").rows if row.nodes == n)
        ran = lab().run(next(case for case in lab().known if lab().row(case, "fig4") == row))
        memory, budget = ran.result.trace.memory, ran.schedule.meta.budgets[0]
        own = paper.PROMPT_TOKENS // n * 7168
        for node in range(n):
            used = memory["bytes_in_use"][memory["node"] == node]
            assert used.max() <= budget
            assert used.max() > 1.5 * own
            assert used[-1] == own
        assert ran.report.replica_factor[0] == n
        assert all(b <= a + 0.05 for a, b in pairwise(ran.report.replica_factor))


def test_figure_5_larger_chunks_cost_less_time_and_fewer_bytes() -> None:
    for prompt in (2048, 4096, 8192, 16384):
        of_prompt = [row for row in study("fig5").rows if row.prompt_tokens == prompt]
        for small, large in pairwise(sorted(of_prompt, key=lambda row: row.chunk_tokens)):
            assert (small.ttft_s or 0) > (large.ttft_s or 0)
            assert (small.traffic_bytes or 0) > (large.traffic_bytes or 0)


def test_table_2_names_the_columns_that_contradict_themselves() -> None:
    found = {item.name.removeprefix("power efficiency, "): item.flag for item in items("table2", "power efficiency")}
    agree = [name for name, flag in found.items() if flag == REPRODUCED]
    assert agree == ["Li et al.", "TeLLMe", "MEADOW"]
    [mcf] = items("table2", "power efficiency, MCF")
    assert (mcf.published, round(mcf.ours or 0, 2)) == (0.81, 0.96)


# --- all of them ---


@every_study
def test_each_item_has_a_flag_and_one_line_of_arithmetic_with_numbers(name: str) -> None:
    found = study(name)
    assert found.items
    for item in found.items:
        assert item.flag in FLAGS
        assert re.search(r"\d", item.arithmetic)
        assert "\n" not in item.arithmetic
        assert item.study == name


@every_study
def test_no_simulated_time_is_below_its_bound(name: str) -> None:
    for row in study(name).rows:
        assert row.why is None
        assert (row.bound_s or 0) <= (row.ttft_s or 0)
