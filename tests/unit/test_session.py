"""What a worker's session does with the head's frames, where no world is needed for it."""

from types import SimpleNamespace
from typing import Any

import pytest

from mcf.dist import session
from mcf.dist.control import Frame


def test_a_process_keeps_its_memory_from_before_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    model = SimpleNamespace(model=SimpleNamespace(parameters=list), num_layers=1, vocab_size=2)

    def load(*_: object, **__: object) -> Any:
        order.append("load")
        return model

    monkeypatch.setattr(session, "keep_freed_memory", lambda: order.append("keep"))
    monkeypatch.setattr(session, "load_model", load)
    replies: list[str] = []
    frame = Frame(type="load", fields={"folder": "somewhere", "dtype": "float32", "num_threads": 1})
    transport: Any = SimpleNamespace(rank=0)
    session.Session(transport).handle(frame, lambda kind, *_, **__: replies.append(kind))
    assert (order, replies) == (["keep", "load"], ["loaded"])
