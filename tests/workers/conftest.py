"""Fixtures of tests that run whole requests on worker processes."""

import numpy as np
import pytest

import netns
from mcf.dist.nursery import HEAVY, Nursery, lent
from mcf.engine import llm
from mcf.engine.sampler import Sampler


@pytest.fixture
def needs_hosts() -> None:
    """Skip, in one line, where there can be no hosts."""
    if why := netns.why_not():
        pytest.skip(why)


@pytest.fixture
def seen_logits(monkeypatch):
    """The logits [V] that ids were picked from, in order."""
    seen: list[np.ndarray] = []

    class Recording(Sampler):
        def pick(self, logits):
            seen.append(logits)
            return super().pick(logits)

    monkeypatch.setattr(llm, "Sampler", Recording)
    return seen


@pytest.fixture(scope="session", autouse=True)
def _one_nursery_for_all():
    """Workers of `mcf.load` are forked by one nursery: torch is imported once."""
    nursery = Nursery.start(modules=(*HEAVY, "transformers.models.llama.modeling_llama"))
    with lent(nursery):
        yield
    nursery.close()
