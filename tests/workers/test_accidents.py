"""Every phase meets every accident: the error names worker, phase and reason, and a restart is right again.

The requests replicate and drain (`prefill-early`, `prefill-late`: what a node's own rows do, see `mcf.dist.program`).
"""

import contextlib
import os
import threading
import time

import psutil
import pytest

import cgroups
import mcf
from mcf.dist import process
from mcf.dist.faults import parse
from mcf.dist.world import World
from mcf.errors import WorkerFailedError, WorkerLostError, WorkerMemoryError, WorkerSilentError
from processes import PATIENCE_S, still_alive
from product import Cell, tiny_llama

pytestmark = pytest.mark.dist

NUM_WORKERS, CHUNK, NUM_TOKENS, NUM_NEW = 3, 24, 171, 4
CELL = Cell(NUM_WORKERS, "mars-paper", "7B+3", CHUNK, "least")
CONTRACT_S = 5.0
POINTS = {  # a worker's point -> the phase that the error names
    "start": "joining",
    "joining": "joining",
    "loading": "loading",
    "planning": "planning",
    "prefill": "prefill",
    "prefill-early": "prefill",
    "prefill-late": "prefill",
    "convergence": "convergence",
    "decode": "decode",
}


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return tiny_llama(tmp_path_factory.mktemp("tiny") / "llama")


@pytest.fixture(scope="module")
def case(toy):
    return toy.case(NUM_TOKENS, NUM_NEW)


@pytest.fixture(scope="module")
def llm(toy):
    budget = toy.budget_bytes(CELL, NUM_NEW)
    with mcf.load(toy.folder, workers=NUM_WORKERS, chunk_tokens=CHUNK, kv_memory=budget, poison=True) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_is_left(llm, tmp_path, monkeypatch):
    """After each accident: no process, descriptor, shared memory or temporary file more than before."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    if llm.world.is_closed:
        llm.restart()
    before = held()
    yield
    if llm.world.is_closed:
        llm.restart()
    assert held() == before
    assert list(tmp_path.iterdir()) == []


def held() -> dict[str, object]:
    children = [child for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE]
    return {
        "processes": len(children),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "shared memory": [name for name in os.listdir("/dev/shm") if name.startswith(("torch_", "mcf"))],
    }


def strike(llm, case, fault: str):
    """Start workers with a fault and run a request."""
    llm.restart(fault=fault)
    return llm.generate(case.ids, max_tokens=NUM_NEW, ignore_eos=True)


def check_next(llm, case) -> None:
    assert not llm.is_alive
    llm.restart()
    assert llm.generate(case.ids, max_tokens=NUM_NEW, ignore_eos=True).token_ids == case.reference.ids
    assert [use["pool_bytes"] for use in llm.world.inspect()] == [0] * NUM_WORKERS


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_worker(llm, case, point):
    with pytest.raises(WorkerLostError, match=f"worker 1 was lost during {POINTS[point]}: killed by SIGKILL") as caught:
        strike(llm, case, f"kill:rank=1:phase={point}")
    assert (caught.value.rank, caught.value.phase) == (1, POINTS[point])
    assert not still_alive(llm.world.pids)
    check_next(llm, case)


@pytest.mark.parametrize("point", POINTS)
def test_two_killed_workers(llm, case, point):
    with pytest.raises(WorkerLostError, match=rf"worker [02] was lost during {POINTS[point]}: killed by SIGKILL"):
        strike(llm, case, f"kill:rank=0:phase={point},kill:rank=2:phase={point}")
    assert not still_alive(llm.world.pids)
    check_next(llm, case)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_stops_and_goes_on_is_waited_for(llm, case, point):
    waker = threading.Thread(target=wake_the_stopped)
    waker.start()
    assert strike(llm, case, f"stop:rank=1:phase={point}").token_ids == case.reference.ids
    waker.join()


def wake_the_stopped() -> None:
    """Wait for a process below this one that has stopped itself, and wake it."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if child.status() == psutil.STATUS_STOPPED:
                    child.resume()
                    return
        time.sleep(0.01)


@pytest.mark.parametrize("point", ["loading", "prefill-early", "prefill-late", "convergence", "decode"])
def test_a_worker_that_stops_for_good(llm, case, point, monkeypatch):
    if point != "decode":
        monkeypatch.setitem(World.start.__func__.__kwdefaults__, "silent_s", 1.5)
    begin_s = time.monotonic()
    with pytest.raises(WorkerSilentError, match=f"worker 1 went silent during {POINTS[point]}: no heartbeat for"):
        strike(llm, case, f"stop:rank=1:phase={point}")
    assert time.monotonic() - begin_s < 2 * CONTRACT_S
    assert not still_alive(llm.world.pids)
    check_next(llm, case)


@pytest.mark.parametrize("point", ["loading", "planning", "prefill-late", "convergence", "decode"])
def test_an_error_inside_a_worker(llm, case, point):
    with pytest.raises(WorkerFailedError, match=f"worker 2 failed during {POINTS[point]}: RuntimeError: a fault"):
        strike(llm, case, f"raise:rank=2:phase={point}")
    check_next(llm, case)


@pytest.mark.parametrize("point", ["kill", "stop"])
def test_a_worker_lost_while_shutting_down_costs_nothing(llm, case, point):
    result = strike(llm, case, f"{point}:rank=1:phase=shutdown")
    assert result.token_ids == case.reference.ids
    llm.world.close()
    assert not still_alive(llm.world.pids)
    check_next(llm, case)


@pytest.mark.parametrize("point", ["loading", "prefill"])
def test_a_worker_without_memory_says_so(llm, case, point, monkeypatch):
    monkeypatch.setattr(llm, "kv_memory_bytes", None)
    monkeypatch.setattr(llm, "chunk_tokens", 8192)
    with pytest.raises(WorkerMemoryError, match=f"worker 1 failed during {point}: out of memory") as caught:
        strike(llm, case._replace(ids=[1] * 16000), f"starve:rank=1:phase={point}")
    assert "use more workers, a smaller --kv-memory" in str(caught.value)
    assert caught.value.exit_code == 1
    monkeypatch.undo()
    check_next(llm, case)


def test_a_worker_that_the_system_kills_for_want_of_memory(llm, case, monkeypatch):
    if why := cgroups.why_not():
        pytest.skip(why)
    monkeypatch.setattr(process, "_OOM_KILLS_AT_START", process.num_oom_kills())
    monkeypatch.setattr(llm, "kv_memory_bytes", None)
    monkeypatch.setattr(llm, "chunk_tokens", 8192)
    with cgroups.memory_limit(16 << 20) as limit:
        limit(llm.world.pids[1])
        with pytest.raises(
            WorkerLostError, match=r"worker 1 was lost during \w+: killed by SIGKILL, for want of memory: "
        ):
            llm.generate([1] * 16000, max_tokens=NUM_NEW, ignore_eos=True)
        assert not still_alive(llm.world.pids)
    monkeypatch.undo()
    check_next(llm, case)


def test_a_pool_that_memory_does_not_hold_is_named_with_its_size(llm, case):
    llm.restart(fault="starve:rank=1:phase=planning")
    plan = llm.plan(NUM_TOKENS, NUM_NEW)
    llm.world.phase = "planning"
    llm.world.send(1, "plan", plan.data, sha256=plan.sha256, page_bytes=1 << 30, slot_bytes=0)
    with pytest.raises(WorkerMemoryError, match="out of memory while the KV pool was taken: it asked for 1 GiB more"):
        llm.world.wait_for("planned", [1])
    check_next(llm, case)


def test_a_plan_that_is_not_the_one_announced(llm, case):
    plan = llm.plan(NUM_TOKENS, NUM_NEW)
    llm.world.broadcast("plan", plan.data, sha256="0" * 64, page_bytes=1, slot_bytes=1)
    with pytest.raises(WorkerFailedError, match="the schedule's bytes do not have the announced sha256"):
        llm.world.wait_for("planned")
    check_next(llm, case)


def test_faults_strike_what_the_rows_do(llm, case):
    """Early comes before late, and each is reached: otherwise a kill there would test nothing."""
    assert [fault.phase for fault in parse("kill:rank=1:phase=prefill-late,kill:rank=head:phase=decode")] == [
        "prefill-late",
        "decode",
    ]
    for point in ("prefill-early", "prefill-late"):
        with pytest.raises(WorkerFailedError, match="during prefill") as caught:
            strike(llm, case, f"raise:rank=1:phase={point}")
        assert "_chunk" in caught.value.__notes__[0]
    check_next(llm, case)
