"""`mcf run` on real worker processes: the answer alone on stdout, numbers on stderr, files as asked."""

import json

import pytest

from command import check_json, mcf

pytestmark = [pytest.mark.dist, pytest.mark.slow]

PROMPT = "In the beginning a long prompt was cut into chunks, and every chunk into pieces. " * 2
RUN = ("--chunk-tokens", "64", "--max-tokens", "12", "--kv-memory", "1MiB")


@pytest.fixture(scope="module")
def as_json(toy):
    return mcf("run", str(toy), "--prompt", PROMPT, "--json", *RUN)


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    return tmp_path_factory.mktemp("trace") / "trace.json"


@pytest.fixture(scope="module")
def as_text(toy, trace_file):
    return mcf("run", str(toy), "--prompt-file", "-", "--trace", str(trace_file), *RUN, stdin=PROMPT)


def test_json_is_one_object_with_the_documented_keys_and_types(as_json) -> None:
    assert (as_json.code, as_json.left) == (0, []), as_json.err
    assert as_json.out.count("\n") == 1
    found = check_json(as_json.out, "run")
    assert found["workers"] == len(found["peak_kv_bytes"]) == 2
    assert found["kv_budget_bytes"] == 2**20
    assert len(found["token_ids"]) <= 12
    assert sum(found["certificate"]["tokens_per_worker"]) == found["prompt_tokens"]
    parts = found["breakdown"]
    total_s = parts["compute_s"] + parts["exposed_communication_s"] + parts["other_s"]
    assert total_s == pytest.approx(found["ttft_s"])


def test_stdout_holds_the_answer_alone(as_json, as_text) -> None:
    assert (as_text.code, as_text.left) == (0, []), as_text.err
    assert as_text.out.removesuffix("\n") == json.loads(as_json.out)["text"].removesuffix("\n")


def test_the_table_on_stderr_says_the_same_as_json(as_json, as_text) -> None:
    found = json.loads(as_json.out)
    for words in ("time to first token", "compute", "exposed communication", "other", "tokens/s", "new KV", "states"):
        assert words in as_text.err
    assert f"{found['prompt_tokens']:,} tokens" in as_text.err
    assert "of a budget of 1 MiB each" in as_text.err
    first, *_, last = found["replica_factor"]
    assert f"start {first:.2f}, middle " in as_text.err
    assert f"end {last:.2f}" in as_text.err
    assert f"complete: {found['certificate']['num_blocks']} blocks, 1 owner each, 0 replicas" in as_text.err


def test_progress_is_a_line_per_stage_and_chunk(as_json, as_text) -> None:
    num_chunks = len(json.loads(as_json.out)["replica_factor"])
    for done in (as_json, as_text):
        lines = done.err.splitlines()
        assert len([line for line in lines if line.startswith("load: ")]) == 1
        assert 1 <= len([line for line in lines if line.startswith("prefill: ")]) <= num_chunks


def test_the_trace_opens_in_perfetto(as_text, trace_file) -> None:
    found = json.loads(trace_file.read_text(encoding="utf-8"))
    events = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["args"]["stage"] for event in events} >= {"prefill", "decode"}
    assert str(trace_file) in as_text.err


def test_a_prompt_longer_than_the_window_is_never_cut(toy) -> None:
    done = mcf("run", str(toy), "--prompt", "all too many words " * 100)
    assert (done.code, done.out, done.left) == (2, "", [])
    assert "has a window of 512, prompt and answer together; shorten the prompt by at least" in done.error


def test_impossible_memory_is_refused_before_any_weight_moves(toy) -> None:
    """Bug S16: five workers, too little memory: the limit and what is missing, not a broken connection."""
    args = ("--prompt", "some words " * 20, "--workers", "5", "--kv-memory", "8KiB")
    done = mcf("run", str(toy), *args, MCF_FAULT="kill:rank=0:phase=loading")  # loading would end with exit code 1
    assert (done.code, done.out, done.left) == (2, "", [])
    assert "got a KV budget of 8 KiB on node 0" in done.error
    assert "bytes) more" in done.error
    assert "connection" not in done.error
