"""All workers stop behind the same chunk, whichever they were in: threads stand for workers."""

import threading

import pytest

from mcf.dist.brake import Brake


def test_chunks_run_until_told_otherwise():
    brake = Brake()
    assert [brake.may_run(chunk) for chunk in range(3)] == [True] * 3
    assert brake.hold() == 2
    brake.stop_after(3)
    assert [brake.may_run(chunk) for chunk in (3, 4)] == [True, False]


def test_a_new_request_knows_nothing_of_the_last():
    brake = Brake()
    brake.may_run(5)
    brake.hold()
    brake.stop_after(5)
    brake.reset()
    assert brake.hold() == -1
    brake.stop_after(-1)
    assert not brake.may_run(0)


@pytest.mark.parametrize("chunks", [(0, 0), (2, 0), (-1, 3)])
def test_workers_in_different_chunks_end_behind_the_same_one(chunks):
    brakes = [Brake() for _ in chunks]
    for brake, chunk in zip(brakes, chunks, strict=True):
        for done in range(chunk + 1):
            brake.may_run(done)
    ran: list[list[int]] = [[] for _ in chunks]

    def compute(rank: int) -> None:
        chunk = chunks[rank] + 1
        while brakes[rank].may_run(chunk):
            ran[rank].append(chunk)
            chunk += 1

    held = [brake.hold() for brake in brakes]
    threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(len(chunks))]
    for thread in threads:
        thread.start()
    assert held == list(chunks)
    assert ran == [[] for _ in chunks]
    for brake in brakes:
        brake.stop_after(max(held))
    for thread in threads:
        thread.join()
    assert [chunk + len(done) for chunk, done in zip(chunks, ran, strict=True)] == [max(chunks)] * len(chunks)
