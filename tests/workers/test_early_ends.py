"""A request that ends early leaves the workers whole: in step, with nothing held, and right the next time."""

import os
import signal
import time

import pytest

import mcf
from mcf.dist.program import parts_of_chunk
from mcf.errors import RunError, UserError, WorkerLostError
from processes import still_alive
from product import Cell, tiny_llama

pytestmark = pytest.mark.dist

NUM_WORKERS, CHUNK, NUM_TOKENS, NUM_NEW = 3, 24, 171, 6
SHORT = {"max_tokens": NUM_NEW, "ignore_eos": True}
CELL = Cell(NUM_WORKERS, "mars-paper", "7B+3", CHUNK, "least")


class Gone(Exception):
    """What a callback raises."""


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module")
def llm(toy):
    budget = toy.budget_bytes(CELL, NUM_NEW)
    with mcf.load(toy.folder, workers=NUM_WORKERS, chunk_tokens=CHUNK, kv_memory=budget, poison=True) as llm:
        yield llm


@pytest.fixture(scope="module")
def case(toy):
    return toy.case(NUM_TOKENS, NUM_NEW)


def check_whole(llm, case) -> None:
    """Nothing is held, and the next request on the same workers is right."""
    assert llm.is_alive
    assert [use["pool_bytes"] for use in llm.world.inspect()] == [0] * NUM_WORKERS
    assert llm.generate(case.ids, **SHORT).token_ids == case.reference.ids
    assert [use["pool_bytes"] for use in llm.world.inspect()] == [0] * NUM_WORKERS


def raise_at(num_done: int):
    def on_progress(stage: str, done: float, total: float) -> None:
        if done >= num_done:
            raise Gone

    return on_progress


@pytest.mark.parametrize("num_done", range(0, NUM_TOKENS, CHUNK))
def test_an_exception_of_the_progress_callback_behind_any_chunk(llm, case, num_done):
    pids = llm.world.pids
    with pytest.raises(Gone):
        llm.generate(case.ids, **SHORT, on_progress=raise_at(num_done))
    check_whole(llm, case)
    assert llm.world.pids == pids


def test_the_requests_here_replicate_and_drain(llm):
    plan = llm.plan(NUM_TOKENS, NUM_NEW)
    seen = {part for chunk in range(plan.schedule.meta.num_chunks) for part in parts_of_chunk(plan.schedule, chunk)}
    assert seen == {"prefill-early", "prefill-late"}


def test_an_exception_of_the_text_callback(llm, case):
    def on_text(piece: str) -> None:
        raise Gone

    with pytest.raises(Gone):
        llm.generate(case.ids, **SHORT, on_text=on_text)
    check_whole(llm, case)


@pytest.mark.parametrize("num_asked", [0, 1, 5, 13, 21, 27])
def test_a_request_that_should_stop(llm, case, num_asked):
    asked = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) > num_asked

    with pytest.raises(mcf.RequestCancelledError, match="cancelled by the caller during") as caught:
        llm.generate(case.ids, **SHORT, should_stop=should_stop)
    assert caught.value.token_ids == case.reference.ids[: len(caught.value.token_ids)]
    check_whole(llm, case)


def test_a_stop_between_tokens_keeps_what_there_was(llm, case):
    pieces: list[str] = []
    with pytest.raises(mcf.RequestCancelledError, match="during decode") as caught:
        llm.generate(case.ids, **SHORT, on_text=pieces.append, should_stop=lambda: len(pieces) > 1)
    assert caught.value.text == "".join(pieces)
    assert 0 < len(caught.value.token_ids) < NUM_NEW
    assert caught.value.token_ids == case.reference.ids[: len(caught.value.token_ids)]


def test_a_time_limit_that_is_over(llm, case):
    with pytest.raises(mcf.RequestTimeoutError, match="not done within its time limit of 1e-06 s: it ended during"):
        llm.generate(case.ids, **SHORT, timeout_s=1e-6)
    check_whole(llm, case)
    with pytest.raises(UserError, match="time limit of -1 s"):
        llm.generate(case.ids, **SHORT, timeout_s=-1)


@pytest.mark.parametrize("num_done", [0, CHUNK, NUM_TOKENS])
def test_ctrl_c_in_a_request(llm, case, num_done):
    def on_progress(stage: str, done: float, total: float) -> None:
        if done >= num_done:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        llm.generate(case.ids, **SHORT, on_progress=on_progress)
    check_whole(llm, case)


def test_a_request_that_does_not_leave_in_time_ends_the_workers(llm, case):
    def stop_one(stage: str, done: float, total: float) -> None:
        os.kill(llm.world.pids[1], signal.SIGSTOP)
        raise Gone

    llm.patience_s = 0.1
    with pytest.raises(Gone):
        llm.generate(case.ids, **SHORT, on_progress=stop_one)
    del llm.patience_s
    with pytest.raises(RunError, match=r"gone: a request that had ended early \(Gone\) did not leave them in time"):
        llm.generate(case.ids, **SHORT)
    llm.restart()
    check_whole(llm, case)


def test_without_patience_an_early_end_is_the_workers_end_and_they_come_back(llm, case):
    pids, tokenizer = llm.world.pids, llm.tokenizer
    llm.patience_s = 0.0
    with pytest.raises(Gone):
        llm.generate(case.ids, **SHORT, on_progress=raise_at(CHUNK))
    assert not still_alive(pids)
    assert not llm.is_alive
    with pytest.raises(RunError, match=r"the workers are gone: Gone; llm\.restart\(\) brings them back"):
        llm.generate(case.ids, **SHORT)
    del llm.patience_s
    llm.restart()
    assert llm.tokenizer is tokenizer
    check_whole(llm, case)


def test_a_loss_is_reported_once_and_mended_by_a_restart(llm, case):
    pids = llm.world.pids
    os.kill(pids[1], signal.SIGKILL)
    begin_s = time.monotonic()
    with pytest.raises(WorkerLostError, match="worker 1 was lost during planning: killed by SIGKILL"):
        llm.generate(case.ids, **SHORT)
    assert time.monotonic() - begin_s < 2.0
    assert not still_alive(pids)
    with pytest.raises(RunError, match="the workers are gone: worker 1 was lost during planning"):
        llm.generate(case.ids, **SHORT)
    llm.restart()
    check_whole(llm, case)
    assert set(llm.world.pids).isdisjoint(pids)
