"""`check_executor`: anything that obeys schedules is judged against the reference."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Protocol

import numpy as np

from mcf.cluster import Cluster
from mcf.policies import PlanRequest, plan
from mcf.ref import Outcome, Residency, run
from mcf.schedule import Schedule, verify
from mcf.schedule.steps import DECODE, PREFILL
from mcf.testing.drawing import random_schedule
from mcf.testing.expect import expect
from mcf.testing.oracle import Array, random_qkv
from mcf.testing.policies import TINY
from mcf.testing.recipe import Recipe
from mcf.trace import Trace


class Result(Protocol):
    """What an executor returns: as `mcf.ref.Outcome`."""

    @property
    def out(self) -> Array:
        """[L, S+T, Hq, d] attention outputs."""

    @property
    def trace(self) -> Trace:
        """What was moved, one SEND event per link crossed."""

    @property
    def residency(self) -> Residency:
        """Which copies each node holds."""


class Executor(Protocol):
    """Anything that obeys schedules on given tensors, called as `mcf.ref.run` is."""

    def __call__(self, schedule: Schedule, q: Array, k: Array, v: Array, *, decode_tokens: int) -> Result:
        """Run a schedule."""


def standard_schedules() -> dict[str, Schedule]:
    """Small legal schedules that use every step, payload, hold and topology: what every executor must run."""
    recipes: Mapping[str, Recipe] = {
        "one node": Recipe(num_nodes=1, max_new_tokens=3, seed=1),
        "streams and replicas": Recipe(max_new_tokens=3, page_tokens=64, seed=2),
        "four nodes on a ring": Recipe(num_nodes=4, prompt_tokens=29, topology="ring", max_new_tokens=3, seed=5),
        "nodes without tokens": Recipe(num_nodes=4, prompt_tokens=3, chunk_tokens=2, max_new_tokens=3, seed=4),
        "other owners": Recipe(hand_over=True, even=False, max_new_tokens=3, seed=11),
        "head groups": Recipe(head_cuts=(0, 1, 2), multicast=False, max_new_tokens=3, seed=6),
    }
    out = {name: random_schedule(recipe) for name, recipe in recipes.items()}
    for policy, topology in product(("ring", "gather", "full", "mars-paper"), ("switch", "ring")):
        request = PlanRequest(
            shape=TINY, cluster=Cluster.uniform(topology, 4), prompt_tokens=37, chunk_tokens=10, max_new_tokens=3
        )
        out[f"{policy} on a {topology}"] = plan(policy, request)
    return out


def check_executor(
    executor: Executor,
    schedules: Mapping[str, Schedule] | None = None,
    *,
    tolerance: float = 1e-5,
    decode_tokens: int = 3,
    expand: Callable[[Schedule], Schedule] = lambda sched: sched,
) -> int:
    """Judge an executor against the reference on small schedules; returns how many.

    Outputs agree within `tolerance`, payload bytes per link and purpose and the residency at the end are equal.
    `expand` is applied to each schedule first (`mcf.schedule.unicast` for executors without multicast).
    """
    chosen = standard_schedules() if schedules is None else schedules
    for case, given in chosen.items():
        sched = expand(given)
        verify(sched)
        tokens = min(decode_tokens, sched.meta.max_new_tokens)
        tensors = random_qkv(sched.meta, decode_tokens=tokens)
        law = run(sched, *tensors, decode_tokens=tokens)
        compare(executor(sched, *tensors, decode_tokens=tokens), law, tolerance=tolerance, case=case)
    return len(chosen)


def compare(result: Result, law: Outcome, *, tolerance: float, case: str = "") -> None:
    """Compare an executor's result with the reference's on the same schedule and tensors."""
    expect(result.out.shape == law.out.shape, case, f"output of shape {result.out.shape}: expected {law.out.shape}")
    error = float(np.abs(np.asarray(result.out, dtype=np.float64) - law.out).max())
    expect(error <= tolerance, case, f"the output differs from the reference by {error:.1e} (at most {tolerance:.0e})")
    for stage in (PREFILL, DECODE):
        got, want = (x.trace.bytes_per_link_and_purpose(stage) for x in (result, law))
        wrong = sorted(key for key in got.keys() | want.keys() if got.get(key) != want.get(key))
        expect(not wrong, case, f"bytes moved per link and purpose differ at {wrong[:1]}: {got} for {want}")
    for node in range(law.residency.shape[1]):
        same = np.array_equal(result.residency.end(node), law.residency.end(node))
        expect(same, case, f"node {node} holds other blocks at the end than the reference")
