"""Model families, tied and untied embeddings, RoPE scalings and bf16 through the full product in one process."""

import json
from functools import cache

import numpy as np
import pytest

from mcf import policies
from mcf.engine.source import resolve
from mcf.errors import ModelError
from mcf.testing.localrun import LocalResult, run_local
from mcf.testing.toys import make_toy_model, reference_generate, toy_config
from plans import LEAST_NODES
from product import Cell, Toy, all_pairs, check_answer, check_certificate, directory_rows, planned_bytes

NUM_NEW = 4
BF16_LOGITS = 0.25  # bf16 keeps 8 bits; two groupings of the same sums gave toy logits up to 0.14 apart

SELECTION = all_pairs(
    {
        "family": ("llama", "qwen2", "qwen3", "mistral"),
        "tied": (False, True),
        "rope": ("default", "llama3", "yarn"),
        "policy": policies.NAMES,
        "num_nodes": (1, 2, 3, 4),
    }
)


@pytest.fixture(scope="session")
def toy_of(tmp_path_factory):
    @cache
    def toy(family: str, tied: bool, rope: str, dtype: str = "float32") -> Toy:
        folder = tmp_path_factory.mktemp("family") / f"{family}-{rope}"
        return Toy(make_toy_model(folder, family, tied=tied, rope=rope), dtype)

    return toy


def run_cell(toy: Toy, cell: Cell, num_new: int, ids: list[int], forced: list[int] | None = None) -> LocalResult:
    plan = toy.plan(cell, num_new)
    result = run_local(toy.model, plan, ids, max_new_tokens=num_new, forced=forced)
    assert result.sent_bytes() == planned_bytes(plan, num_new)
    assert tuple(result.peaks) == plan.report.peak_bytes
    check_certificate(plan, directory_rows(result.certificate))
    return result


@pytest.mark.parametrize("row", SELECTION, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_a_family_equals_one_process(toy_of, row):
    toy = toy_of(row["family"], row["tied"], row["rope"])
    num_nodes = max(row["num_nodes"], LEAST_NODES.get(row["policy"], 1))
    cell = Cell(num_nodes, row["policy"], "7B+3", 16, "unlimited")
    case = toy.case(cell.prompt_tokens, NUM_NEW)
    result = run_cell(toy, cell, NUM_NEW, case.ids)
    check_answer(result.ids, result.logits, case.reference)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("rope", ["llama3", "yarn"])
def test_rope_scaling_changes_the_logits(toy_of, family, rope):
    """So a product that ignored it would not pass above."""
    plain, scaled = toy_of(family, False, "default"), toy_of(family, False, rope)
    ids = plain.case(115, NUM_NEW).ids
    cell = Cell(1, "gather", "7B+3", 16, "unlimited")
    logits = [run_cell(toy, cell, 1, ids).logits for toy in (plain, scaled)]
    assert np.abs(logits[0] - logits[1]).max() > 0.01


@pytest.mark.parametrize("policy", policies.NAMES)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_bf16_is_near_the_one_node_run(toy_of, family, policy):
    toy, num_new = toy_of(family, False, "default", "bfloat16"), 16
    ids = np.random.default_rng(7).integers(0, toy.shape.vocab_size, 115).tolist()
    alone = run_cell(toy, Cell(1, "gather" if policy in LEAST_NODES else policy, "7B+3", 16, "unlimited"), num_new, ids)
    one_process = reference_generate(toy.folder, ids, 1, "bfloat16")
    assert np.abs(alone.logits[:1] - one_process.logits).max() <= BF16_LOGITS
    top = np.sort(alone.logits, axis=1)[:, -2:]
    clear = top[:, 1] - top[:, 0] > 2 * BF16_LOGITS
    assert clear.sum() >= num_new // 2
    for num_nodes in (2, 3, 4):
        result = run_cell(toy, Cell(num_nodes, policy, "7B+3", 16, "unlimited"), num_new, ids, forced=alone.ids)
        assert np.abs(result.logits - alone.logits).max() <= BF16_LOGITS
        np.testing.assert_array_equal(np.array(result.ids)[clear], np.array(alone.ids)[clear])


REFUSED = {
    "sliding-window attention": {"model_type": "mistral", "sliding_window": 128},
    r"multi-head latent attention \(MLA\)": {"model_type": "deepseek_v3", "kv_lora_rank": 64},
    "linear attention": {"layer_types": ["linear_attention", "full_attention"]},
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    "longrope": {
        "rope_parameters": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "rope_theta": 10000.0}
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_done_yet_is_refused_by_name(tmp_path, name):
    folder = make_toy_model(tmp_path / "toy")
    (folder / "config.json").write_text(json.dumps(toy_config() | REFUSED[name]))
    with pytest.raises(ModelError, match=name) as caught:
        resolve(str(folder))
    assert "\n" not in str(caught.value)
