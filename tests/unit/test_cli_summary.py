"""The short table at the end of a run, line by line."""

from dataclasses import replace

import numpy as np
import pytest

from mcf.cli.numbers import factors_text, traffic_text
from mcf.cli.summary import certificate_text, summary_rows
from mcf.engine.result import Result
from mcf.policies import plan
from mcf.trace import EVENT, Trace
from plans import request

RESULT = Result(
    text="hello",
    token_ids=[1, 2, 3],
    prompt_tokens=6900,
    ttft_s=10.0,
    decode_s=0.5,
    token_s=[0.2, 0.3],
    breakdown={"compute_s": 8.0, "communication_s": 3.0, "exposed_communication_s": 1.5, "other_s": 0.5},
    bytes={"new_kv": 2**20, "fetched_kv": 3 * 2**20, "query": 0, "state": 2**10},
    peak_kv_bytes=[128 * 2**20, 64 * 2**20],
    kv_budget_bytes=256 * 2**20,
    replica_factor=[2.0, 1.75, 1.0],
    certificate={
        "complete": True,
        "num_blocks": 14,
        "owners_per_block": 1,
        "replicas": 0,
        "tokens_per_worker": [3450, 3450],
        "page_tokens": 64,
        "balanced_within_a_page": True,
    },
    policy="mars-paper",
    workers=2,
    chunk_tokens=1024,
    finish_reason="stop",
    versions={"mcf": "0.1.0"},
    trace=Trace(events=np.zeros(0, EVENT)),
    schedule=plan("gather", request()),
)


def test_every_line() -> None:
    assert summary_rows(RESULT) == [
        ("run", "policy mars-paper, 2 workers, chunks of 1,024 tokens"),
        (
            "time to first token",
            "10 s = compute 8 s + exposed communication 1.5 s + other 500 ms; communication 3 s in all",
        ),
        ("prefill", "6,900 tokens, 690 tokens/s"),
        ("decode", "3 tokens, 4.0 tokens/s (the model ended it)"),
        ("bytes sent", "4 MiB (new KV 1 MiB, fetched KV 3 MiB, queries 0 B, states 1 KiB)"),
        ("peak KV", "node 0 128 MiB (50%), node 1 64 MiB (25%) of a budget of 256 MiB each"),
        ("replica factor", "start 2.00, middle 1.75, end 1.00 (copies per token)"),
        ("certificate", "complete: 14 blocks, 1 owner each, 0 replicas, 3,450 + 3,450 tokens, equal to within a page"),
    ]


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"token_ids": [1]}, "decode", "1 token, too few for a rate (the model ended it)"),
        ({"finish_reason": "length"}, "decode", "3 tokens, 4.0 tokens/s (cut at --max-tokens or the window)"),
        ({"kv_budget_bytes": None}, "peak KV", "node 0 128 MiB, node 1 64 MiB, no budget"),
        ({"replica_factor": [1.0]}, "replica factor", "start 1.00, middle 1.00, end 1.00 (copies per token)"),
    ],
)
def test_lines_of_odd_runs(changes, name, value) -> None:
    assert dict(summary_rows(replace(RESULT, **changes)))[name] == value


def test_shares_of_some_heads_are_rounded() -> None:
    text = certificate_text({**RESULT.certificate, "tokens_per_worker": [32 / 3, 1064 / 3, 7000]})
    assert "10.67 + 354.67 + 7,000 tokens" in text


def test_a_certificate_that_is_not_complete_says_so() -> None:
    broken = {**RESULT.certificate, "complete": False, "balanced_within_a_page": False}
    line = dict(summary_rows(replace(RESULT, certificate=broken)))["certificate"]
    assert line.startswith("NOT complete: ")
    assert line.endswith("not equal to within a page")


def test_many_factors_are_thinned_out_and_keep_both_ends() -> None:
    text = factors_text([float(i) for i in range(100)])
    assert text.startswith("0.00 ")
    assert text.endswith("99.00 (24 of 100)")


def test_traffic_of_an_unknown_purpose_keeps_its_name() -> None:
    assert traffic_text({"new_kv": 1, "gossip": 2}) == "3 B (new KV 1 B, gossip 2 B)"
