"""The full product in one process, cell by cell, against one process of transformers.

Cells: node count, prompt length, chunk size, policy, budget. Each run is judged by greedy ids and logits, bytes by
purpose at the transport, pool peaks, and the certificate from the nodes' directories; pools start as NaN.
"""

from itertools import product

import numpy as np
import pytest

from installed import install
from mcf import policies
from mcf.engine.planner import Plan, make_plan
from mcf.errors import InfeasibleError, PromptError
from mcf.schedule import PAGE_TOKENS
from mcf.schedule.steps import DRAIN, PREFILL
from mcf.testing.localrun import run_local
from pages import DOCS, blocks
from plans import pairs_of
from product import (
    BUDGETS,
    CHUNKS,
    PROMPTS,
    Cell,
    Toy,
    all_pairs,
    check_answer,
    check_certificate,
    directory_rows,
    named,
    planned_bytes,
    tiny_llama,
)

NODES = (1, 2, 3, 4)
WHOLE = (
    "ring",
    "gather",
    "full",
    "mars-paper",
)  # policies whose whole matrix is run; a pairwise selection of the others


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


def num_new_tokens(cell: Cell) -> int:
    """32 where the prompt spans eight small chunks, 3 elsewhere."""
    return 32 if cell.prompt == "7B+3" and cell.chunk == 8 else 3


def cells(num_nodes: int, policy: str) -> list[Cell]:
    """Distinct prompt lengths only; 0 tokens are refused elsewhere."""
    found = {}
    factors = {"num_nodes": NODES, "prompt": PROMPTS, "chunk": CHUNKS, "budget": BUDGETS}
    rows = product(*factors.values()) if policy in WHOLE else (row.values() for row in all_pairs(factors))
    for nodes, prompt, chunk, budget in rows:
        if nodes != num_nodes:
            continue
        cell = Cell(num_nodes, policy, prompt, chunk, budget)
        if cell.prompt_tokens:
            found.setdefault((cell.prompt_tokens, chunk, budget), cell)
    return list(found.values())


def rows_of(plan: Plan) -> tuple[bytes, bytes]:
    """What a run depends on; a budget that changes no row changes no run."""
    return plan.schedule.steps.tobytes(), plan.schedule.pieces.tobytes()


def check_run(toy: Toy, plan: Plan, num_new: int, seed: int | None = None) -> None:
    case = toy.case(plan.schedule.meta.prompt_tokens, num_new)
    result = run_local(toy.model, plan, case.ids, max_new_tokens=num_new, seed=seed)
    check_answer(result.ids, result.logits, case.reference)
    assert result.sent_bytes() == result.received_bytes() == planned_bytes(plan, num_new)
    assert tuple(result.peaks) == plan.report.peak_bytes
    check_certificate(plan, directory_rows(result.certificate))


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "num_nodes"), pairs_of(policies.NAMES, NODES))
def test_every_cell_equals_one_process(toy, num_nodes, policy):
    done = set()
    for cell in cells(num_nodes, policy):
        num_new = num_new_tokens(cell)
        with named(cell):
            plan = toy.plan(cell, num_new)
            if rows_of(plan) not in done:
                done.add(rows_of(plan))
                check_run(toy, plan, num_new)
    assert len(done) > (16 if policy in WHOLE else 4)


@pytest.mark.parametrize("policy", policies.NAMES)
@pytest.mark.parametrize("num_nodes", [2, 3, 4])
def test_late_and_reordered_transfers_change_nothing(toy, num_nodes, policy):
    for seed, budget in enumerate(BUDGETS):
        cell = Cell(num_nodes, policy, "7B+3", 8, budget)
        with named((cell, seed)):
            check_run(toy, toy.plan(cell, 3), 3, seed=seed)


@pytest.mark.parametrize(("num_nodes", "policy", "num_new"), [(2, "mars-paper", 140), (3, "ring", 200)])
def test_generated_tokens_go_round_all_nodes(toy, num_nodes, policy, num_new):
    cell = Cell(num_nodes, policy, "7B+3", 8, "least")
    check_run(toy, toy.plan(cell, num_new), num_new)


@pytest.mark.parametrize("policy", policies.NAMES)
def test_an_empty_prompt_is_refused(toy, policy):
    with pytest.raises(PromptError, match="empty prompt"):
        make_plan(toy.shape, prompt_tokens=0, num_workers=2, policy=policy)


@pytest.mark.parametrize("policy", policies.NAMES)
@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_byte_less_than_the_least_is_refused(toy, policy, chunk):
    cell = Cell(3, policy, "7B+3", chunk, "least")
    budget = toy.budget_bytes(cell, 3)
    with pytest.raises(InfeasibleError) as caught:
        make_plan(
            toy.shape,
            prompt_tokens=cell.prompt_tokens,
            num_workers=3,
            policy=policy,
            chunk_tokens=chunk,
            kv_memory_bytes=budget - 1,
            max_tokens=3,
        )
    assert caught.value.missing_bytes == 1


def test_budgets_make_mars_drain(toy):
    plans = [toy.plan(Cell(4, "mars-paper", "7B+3", 16, budget), 3) for budget in BUDGETS]
    assert len({rows_of(plan) for plan in plans}) == 3
    drains = [np.flatnonzero(p.schedule.steps["kind"] == DRAIN) for p in plans]
    early = [int((p.schedule.steps["stage"][rows] == PREFILL).sum()) for p, rows in zip(plans, drains, strict=True)]
    assert early[1] > 0


def test_forced_ids_are_fed_in_place_of_the_picked_ones(toy):
    plan = toy.plan(Cell(2, "gather", "7B+3", 8, "unlimited"), 4)
    case = toy.case(plan.schedule.meta.prompt_tokens, 4)
    free = run_local(toy.model, plan, case.ids, max_new_tokens=4)
    same = run_local(toy.model, plan, case.ids, max_new_tokens=4, forced=free.ids)
    np.testing.assert_array_equal(free.logits, same.logits)
    other = [(token + 1) % toy.shape.vocab_size for token in free.ids]
    forced = run_local(toy.model, plan, case.ids, max_new_tokens=4, forced=other)
    np.testing.assert_array_equal(forced.logits[0], free.logits[0])
    assert np.abs(forced.logits[1:] - free.logits[1:]).max() > 0.1


def test_a_policy_of_another_package_runs_like_ours(toy, monkeypatch, tmp_path):
    source = next(block.text for block in blocks(DOCS / "adding-a-policy.md") if block.language == "python")
    install(monkeypatch, tmp_path, "their_package", source, "mcf.policies", {"theirs": "their_package:plan"})
    plan = make_plan(
        toy.shape, prompt_tokens=300, num_workers=2, policy="theirs", chunk_tokens=2 * PAGE_TOKENS, max_tokens=3
    )
    check_run(toy, plan, 3)


@pytest.mark.parametrize("policy", policies.NAMES)
def test_nothing_is_allocated_per_chunk(toy, policy):
    """Two nodes: all lies in the pool. Three: a buffer per receiver and layer in flight, once."""
    for num_nodes, most in ((2, 0), (3, 4)):
        for budget in BUDGETS:
            plan = toy.plan(Cell(num_nodes, policy, "7B+3", num_nodes * 2 * PAGE_TOKENS, budget), 3)
            case = toy.case(plan.schedule.meta.prompt_tokens, 3)
            assert max(run_local(toy.model, plan, case.ids, max_new_tokens=3).num_spills) <= most
