"""All policies side by side, from closed forms: what each takes and moves on a cluster; no schedule is built."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mcf.cluster import Cluster
from mcf.engine.planner import AUTO, check_workers, fixed_chunk
from mcf.mars import (
    FORMS,
    REFERENCES,
    Form,
    Job,
    Prediction,
    Rates,
    Setting,
    candidates,
    compute_bound_s,
    degree,
    n_star,
    predict,
    worst_link_bytes,
)
from mcf.model import ModelShape

NEAR = 1.01  # among chunk sizes that are this near to the least time, the one that takes the least memory wins
LEAST_NODES = {"pd": 2}


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """One policy on one cluster, at its best chunk size.

    `ttft_s` predicted; `bound_s` what no executor of its schedule beats, `limit` why, `bounds` by reason; bytes of
    prefill over all links and over the busiest one; `peak_kv_bytes` of the fullest node; `missing_bytes` by which the
    node that is most over exceeds its budget. A reference is no policy of ours: no schedule of it can be run.
    """

    policy: str
    nodes: int
    prompt_tokens: int
    chunk_tokens: int
    ttft_s: float
    bound_s: float
    limit: str
    traffic_bytes: int
    link_bytes: int
    peak_kv_bytes: int
    missing_bytes: int
    bounds: Mapping[str, float]
    is_reference: bool = False

    @property
    def fits(self) -> bool:
        """Say whether every node's budget holds it."""
        return self.missing_bytes == 0


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Rows of all policies, the fastest that fits first; `bound_s` is what nothing beats on these nodes.

    `n_star`: tokens per node and chunk from which fetched history hides behind attention.
    """

    rows: tuple[PolicyRow, ...]
    bound_s: float
    n_star: float

    @property
    def fits(self) -> bool:
        """Say whether any policy fits."""
        return any(row.fits for row in self.rows if not row.is_reference)


def compare(
    shape: ModelShape,
    cluster: Cluster,
    rates: Rates,
    *,
    prompt_tokens: int,
    chunk_tokens: int | str = AUTO,
    max_tokens: int = 0,
) -> Comparison:
    """Predict every policy; AUTO chooses each one's chunk size: of those that fit the fastest, near ties the leanest.

    Raises UserError for numbers that cannot be. A policy that needs more nodes than there are has no row.
    """
    check_workers(cluster.num_nodes)
    fixed = fixed_chunk(chunk_tokens)
    budgets = [budget for budget in cluster.kv_budgets if budget is not None]
    job = Job(
        shape=shape,
        topology=cluster.topology,
        S=prompt_tokens,
        B=fixed or prompt_tokens,
        max_new_tokens=max_tokens,
        S_node=min(budgets, default=None),
        rates=rates,
    )
    sizes = [job.B] if fixed else candidates(job.N, job.S)
    names = [name for name in (*FORMS, *REFERENCES) if LEAST_NODES.get(name, 1) <= job.N]
    rows = [_row(name, job, sizes, cluster, rates) for name in names]
    rows.sort(key=lambda row: (row.is_reference, not row.fits, row.ttft_s, row.traffic_bytes))
    return Comparison(
        rows=tuple(rows),
        bound_s=least_seconds(job, rates),
        n_star=n_star(shape, rates=rates, deg=degree(job.topology)),
    )


def least_seconds(job: Job, rates: Rates) -> float:
    """Seconds that nothing beats on these nodes: the prompt's arithmetic in balance, whatever moves."""
    s = Setting(shape=job.shape, N=job.N, S=job.S, B=job.S)
    return compute_bound_s(s, replace(rates, BW_mem=math.inf))


def _row(name: str, job: Job, sizes: Sequence[int], cluster: Cluster, rates: Rates) -> PolicyRow:
    make = (FORMS | REFERENCES)[name]
    forms = [make(job.replace(B=size)) for size in ([job.S] if name == "one-shot" else sizes)]
    form, found, missing = _choose([(form, predict(form, rates), _missing(form, cluster)) for form in forms])
    return PolicyRow(
        policy=name,
        nodes=job.N,
        prompt_tokens=job.S,
        chunk_tokens=form.job.B,
        ttft_s=found.ttft_s,
        bound_s=found.bound_s,
        limit=found.limit,
        traffic_bytes=form.traffic_bytes,
        link_bytes=worst_link_bytes(form),
        peak_kv_bytes=int(form.peak_bytes.max()),
        missing_bytes=missing,
        bounds=found.bounds,
        is_reference=name in REFERENCES,
    )


def _missing(form: Form, cluster: Cluster) -> int:
    budgets = np.array([2**62 if budget is None else budget for budget in cluster.kv_budgets])
    return max(0, int((form.peak_bytes - budgets).max()))


def _choose(tried: list[tuple[Form, Prediction, int]]) -> tuple[Form, Prediction, int]:
    """Of those that fit the fastest, near ties the leanest; where none fits, the one that misses least."""
    good = [entry for entry in tried if entry[2] == 0]
    if not good:
        return min(tried, key=lambda entry: (entry[2], entry[1].ttft_s))
    least = min(found.ttft_s for _, found, _ in good)
    near = [entry for entry in good if entry[1].ttft_s <= least * NEAR]
    return min(near, key=lambda entry: (int(entry[0].peak_bytes.max()), entry[1].ttft_s))
