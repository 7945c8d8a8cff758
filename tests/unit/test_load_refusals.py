"""What no prompt can mend is refused before anything starts: no worker, no tokenizer, no line of progress."""

import pytest

import mcf
from mcf import policies
from mcf.engine import llm
from mcf.engine.planner import check_least
from mcf.errors import InfeasibleError, UserError
from mcf.policies import least_budget
from mcf.testing.toys import make_toy_model
from plans import request


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch):
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("it was started")

    for name in ("load_tokenizer", "obtain", "_start_world"):
        monkeypatch.setattr(llm, name, refuse)


def refusal(toy, kind: type[UserError], **options: object) -> str:
    seen = []
    with pytest.raises(kind) as caught:
        mcf.load(toy, on_progress=lambda *report: seen.append(report), **options)
    assert seen == []
    return str(caught.value)


def test_a_budget_that_holds_no_prompt(toy) -> None:
    says = refusal(toy, InfeasibleError, kv_memory=1)
    assert says.startswith("got a KV budget of 1 B on node 0: policy mars-paper needs 32 KiB (32767 bytes) more")
    assert says.endswith("(that is for a prompt of 1 token)")


def test_pd_with_one_worker(toy) -> None:
    assert refusal(toy, UserError, workers=1, policy="pd").startswith("got 1 node for policy pd: expected at least 2")


@pytest.mark.parametrize("policy", policies.NAMES)
def test_a_budget_that_holds_a_longer_prompt_is_not_refused(policy) -> None:
    for num_nodes in (1, 2, 3):
        for prompt_tokens, chunk_tokens in ((2, 1), (63, 64), (65, 64), (300, 77)):
            if policy == "pd" and num_nodes == 1:
                continue
            asked = request(num_nodes, prompt_tokens, chunk_tokens, max_new_tokens=3)
            least = least_budget(policy, asked)
            check_least(asked.shape, num_workers=num_nodes, policy=policy, kv_memory_bytes=least)
