"""The product in real processes: one world of workers per node count for the whole session, pairwise chosen cells.

Every second cell starts from pools full of NaN; the others from whatever KV earlier requests left in the memory.
"""

from collections.abc import Callable

import numpy as np
import pytest

import mcf
from mcf import policies
from mcf.engine.llm import LLM
from mcf.errors import InfeasibleError, PromptError
from plans import pairs_of
from product import BUDGETS, CHUNKS, PROMPTS, Cell, all_pairs, check_answer, named, planned_bytes, tiny_llama

pytestmark = [pytest.mark.dist, pytest.mark.slow]

NODES = (1, 2, 3, 4)


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="session")
def world_of(toy):
    """A function from a node count to the one LLM with so many workers."""
    worlds: dict[int, LLM] = {}

    def world(num_nodes: int) -> LLM:
        if num_nodes not in worlds:
            worlds[num_nodes] = mcf.load(toy.folder, workers=num_nodes)
        return worlds[num_nodes]

    yield world
    for llm in worlds.values():
        llm.close()


def selection(num_nodes: int) -> list[Cell]:
    prompts = [p for p in PROMPTS if Cell(num_nodes, "", p, 8, "").prompt_tokens]
    names = [name for name, _ in pairs_of(policies.NAMES, [num_nodes])]
    rows = all_pairs({"prompt": prompts, "chunk": CHUNKS, "policy": names, "budget": BUDGETS})
    return [Cell(num_nodes, **row) for row in rows]


@pytest.mark.parametrize("num_nodes", NODES)
def test_a_pairwise_selection_equals_one_process(toy, world_of: Callable[[int], LLM], seen_logits, num_nodes):
    llm = world_of(num_nodes)
    for at, cell in enumerate(selection(num_nodes)):
        num_new = 8 if cell.prompt == "7B+3" and cell.chunk == 8 else 3
        llm.policy, llm.chunk_tokens = cell.policy, cell.chunk
        llm.kv_memory_bytes = toy.budget_bytes(cell, num_new)
        llm._poison = at % 2 == 0
        case = toy.case(cell.prompt_tokens, num_new)
        seen_logits.clear()
        with named(cell):
            plan = toy.plan(cell, num_new)
            result = llm.generate(case.ids, max_tokens=num_new, ignore_eos=True)
            check_answer(result.token_ids, np.stack(seen_logits), case.reference)
            assert result.bytes == planned_bytes(plan, num_new)
            assert tuple(result.peak_kv_bytes) == plan.report.peak_bytes
            assert tuple(result.replica_factor) == plan.report.replica_factor
            assert result.certificate["complete"] is True
            assert sum(result.certificate["tokens_per_worker"]) == cell.prompt_tokens
            assert result.finish_reason == "length"


def test_refusals_leave_the_workers_up(toy, world_of: Callable[[int], LLM]):
    llm = world_of(2)
    llm.policy, llm.chunk_tokens, llm.kv_memory_bytes = "gather", 8, None
    with pytest.raises(PromptError, match="empty prompt"):
        llm.generate([])
    with pytest.raises(PromptError, match="token id outside"):
        llm.generate([toy.shape.vocab_size])
    llm.kv_memory_bytes = 1
    with pytest.raises(InfeasibleError):
        llm.generate([1, 2, 3])
    llm.kv_memory_bytes = None
    case = toy.case(59, 3)
    assert llm.generate(case.ids, max_tokens=3, ignore_eos=True).token_ids == case.reference.ids
