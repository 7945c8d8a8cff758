"""The real demo model on a real text: two workers say what one process of transformers says."""

from importlib.resources import files

import numpy as np
import pytest

import mcf
from mcf.engine.source import resolve
from mcf.engine.tokens import load_tokenizer
from mcf.schedule.steps import DRAIN, PREFILL
from mcf.testing.toys import Reference, reference_generate
from mcf.units import parse_bytes
from product import LEAST_MARGIN, planned_bytes

pytestmark = [pytest.mark.dist, pytest.mark.slow]

NUM_TOKENS, NUM_NEW = 1900, 8
FIRST_LOGITS = 5e-4  # float32, real models (architecture.md)
BUDGET = "64MiB"  # more than an owner's share and its slots, less than all KV of the prompt: replicas come and drain


@pytest.fixture(scope="module")
def source():
    return resolve("demo")


@pytest.fixture(scope="module")
def prompt(source):
    """Some 1,900 tokens of the text, from the first of three places where the reference has no near-tie; its answer."""
    text = (files("mcf.data") / "ruth_jonah_daniel.txt").read_text(encoding="utf-8")
    ids = load_tokenizer(source).encode_raw(text)
    for start in (0, 700, 1400):
        tokens = ids[start : start + NUM_TOKENS]
        reference = reference_generate(source.folder, tokens, NUM_NEW)
        if reference.margins.min() >= LEAST_MARGIN:
            return tokens, reference
    raise AssertionError("three prompts, and every one has a near-tie")


@pytest.fixture(scope="module")
def llm(source):
    with mcf.load("demo", workers=2, chunk_tokens=512, kv_memory=BUDGET, poison=True) as llm:
        yield llm


@pytest.mark.parametrize("policy", ["mars-paper", "ring"])
def test_two_workers_say_what_one_process_says(llm, prompt, seen_logits, policy):
    ids, reference = prompt
    llm.policy = policy
    plan = llm.plan(len(ids), NUM_NEW)
    result = llm.generate(ids, max_tokens=NUM_NEW, ignore_eos=True)
    check(result.token_ids, seen_logits[0], reference)
    assert result.bytes == planned_bytes(plan, NUM_NEW)
    assert tuple(result.peak_kv_bytes) == plan.report.peak_bytes
    assert max(result.peak_kv_bytes) <= parse_bytes(BUDGET)
    assert result.certificate["complete"] is True


def check(token_ids: list[int], first: np.ndarray, reference: Reference) -> None:
    assert reference.margins.min() >= LEAST_MARGIN
    assert token_ids == reference.ids
    assert float(np.abs(first - reference.logits[0]).max()) <= FIRST_LOGITS


def test_the_budget_makes_replicas_drain(llm):
    llm.policy = "mars-paper"
    plan = llm.plan(NUM_TOKENS, NUM_NEW)
    steps = plan.schedule.steps
    assert ((steps["kind"] == DRAIN) & (steps["stage"] == PREFILL)).any()
    assert max(plan.report.replica_factor) > plan.report.replica_factor[-1]
