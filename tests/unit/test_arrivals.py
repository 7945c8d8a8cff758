"""Waiter threads: ends in any order, errors, and a thread that never starts."""

import _thread
import threading

import pytest

from mcf.dist import arrivals as module
from mcf.dist.arrivals import Arrivals


class Handle:
    """A transfer that ends when told, well or badly."""

    def __init__(self, error: Exception | None = None) -> None:
        self.gate, self.error = threading.Event(), error

    def wait(self) -> None:
        self.gate.wait()
        if self.error is not None:
            raise self.error


@pytest.fixture
def arrivals():
    arrivals = Arrivals()
    yield arrivals
    arrivals.close()


def test_ends_are_seen_in_whatever_order_they_come(arrivals):
    handles = [Handle() for _ in range(5)]
    for key, handle in enumerate(handles):
        arrivals.post(key, handle)
    for key in (3, 0, 4, 1, 2):
        assert not arrivals.has(key)
        handles[key].gate.set()
        arrivals.wait_until(lambda key=key: arrivals.has(key))
        assert arrivals.pop(key) > 0


def test_idle_threads_are_used_again(arrivals):
    for key in range(50):
        handle = Handle()
        handle.gate.set()
        arrivals.post(key, handle)
        arrivals.wait_until(lambda key=key: arrivals.has(key))
    assert arrivals._num_asked == 1


def test_an_error_comes_out_where_one_waits(arrivals):
    handle = Handle(ValueError("cut"))
    arrivals.post("a", handle)
    handle.gate.set()
    with pytest.raises(ValueError, match="cut"):
        arrivals.wait_until(lambda: False)
    with pytest.raises(ValueError, match="cut"):
        arrivals.has("a")


def test_a_thread_that_never_starts_is_a_want_of_memory(arrivals, monkeypatch):
    monkeypatch.setattr(module, "_START_S", 0.01)
    monkeypatch.setattr(_thread, "start_new_thread", lambda work, arguments: 0)
    arrivals.post("a", Handle())
    with pytest.raises(MemoryError, match="can't start new thread"):
        arrivals.wait_until(lambda: False)
