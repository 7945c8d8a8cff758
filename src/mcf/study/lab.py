"""One case: policy + model + cluster + profile -> a verified schedule, its simulated time, and a row of results."""

import random
from dataclasses import dataclass, replace
from typing import Any

from mcf.cluster import Cluster
from mcf.errors import LawError, PlugInError, UserError
from mcf.model import ModelShape
from mcf.policies import BY_BYTES, PlanRequest, plan
from mcf.schedule import Report, Schedule, verify
from mcf.sim import Bounds, Profile, SimResult, bounds, rates_of, simulate
from mcf.study.token import token_numbers

LAYERS = 4  # simulated layers; the others are extrapolated. Bytes, memory and bounds are exact


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is asked once. `layers` None simulates every layer; tokens of a chunk count over all nodes.

    `seed` draws how much slower than the profile each node's compute is: a factor from 1 to 1 + `spread`. `decode`:
    one generated token is timed, too.
    """

    policy: str
    shape: ModelShape
    profile: Profile
    cluster: Cluster
    prompt_tokens: int
    chunk_tokens: int
    alpha: float | None = None
    stream_slots: int = 2
    buffer_bytes: int = 0
    drain_chunks: int = 0
    layers: int | None = LAYERS
    spread: float = 0.0
    seed: int = 0
    decode: bool = False

    @property
    def kv_memory_bytes(self) -> int | None:
        """The smallest budget of a node, None where no node has one."""
        return min((budget for budget in self.cluster.kv_budgets if budget is not None), default=None)

    def request(self) -> PlanRequest:
        """The same as a policy is asked."""
        return PlanRequest(
            shape=self.shape,
            cluster=self.cluster,
            prompt_tokens=self.prompt_tokens,
            chunk_tokens=self.chunk_tokens,
            stream_slots=self.stream_slots,
            buffer_bytes=self.buffer_bytes,
            drain_chunks=self.drain_chunks,
            alpha=self.alpha,
            rates=None if self.policy in BY_BYTES else rates_of(self.profile, self.cluster),
        )

    def factors(self) -> tuple[float, ...] | None:
        """[N] how many times longer each node computes; None where all are as the profile says."""
        if not self.spread:
            return None
        draw = random.Random(self.seed)
        return tuple(1 + self.spread * draw.random() for _ in range(self.cluster.num_nodes))


@dataclass(frozen=True, kw_only=True)
class Row:
    """A case in numbers. Times are model time. What could not run has `why` and no numbers.

    `peak_kv_bytes` is the fullest node's; `traffic_bytes` counts each hop; `limit` names the largest of the `bounds`.
    `decode`: the parts of one generated token (`mcf.study.token`), where it was asked for.
    """

    study: str
    policy: str
    nodes: int
    prompt_tokens: int
    chunk_tokens: int
    topology: str
    profile: str
    kv_memory_bytes: int | None
    seed: int
    ttft_s: float | None = None
    bound_s: float | None = None
    limit: str | None = None
    bounds: dict[str, float] | None = None
    traffic_bytes: int | None = None
    bytes: dict[str, int] | None = None
    peak_kv_bytes: int | None = None
    simulated_layers: int | None = None
    decode: dict[str, float | str] | None = None
    why: str | None = None
    published: dict[str, float] | None = None
    flag: dict[str, str] | None = None

    def to_json(self) -> dict[str, Any]:
        """The documented object (docs/json.md)."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Everything about a case that ran."""

    case: Case
    schedule: Schedule
    report: Report
    result: SimResult
    bounds: Bounds

    @property
    def ttft_s(self) -> float:
        """Seconds of model time to the first token."""
        return self.result.ttft_s

    @property
    def traffic_bytes(self) -> int:
        """Payload bytes of prefill, each hop counted."""
        return sum(self.report.traffic.values())


class Lab:
    """Runs cases, each once: a case that comes again, in another table or figure, is looked up."""

    def __init__(self) -> None:
        self._known: dict[Case, Outcome | UserError] = {}
        self._schedules: dict[Case, tuple[Schedule, Report]] = {}

    @property
    def known(self) -> tuple[Case, ...]:
        """All cases that were asked."""
        return tuple(self._known)

    def run(self, case: Case) -> Outcome:
        """Plan, verify, simulate and bound. Raises UserError kinds where the policy or the memory says no."""
        if case not in self._known:
            try:
                self._known[case] = self._run(case)
            except UserError as error:
                self._known[case] = error
        found = self._known[case]
        if isinstance(found, UserError):
            raise found
        return found

    def row(self, case: Case, study: str = "") -> Row:
        """The case as a row; a case that cannot run says why."""
        bare = Row(
            study=study,
            policy=case.policy,
            nodes=case.cluster.num_nodes,
            prompt_tokens=case.prompt_tokens,
            chunk_tokens=min(case.chunk_tokens, case.prompt_tokens),
            topology=case.cluster.topology.name,
            profile=case.profile.label,
            kv_memory_bytes=case.kv_memory_bytes,
            seed=case.seed,
        )
        try:
            ran = self.run(case)
        except (LawError, PlugInError):
            raise  # a plug-in that is wrong: not a row among others
        except UserError as error:
            return replace(bare, why=str(error))
        return replace(
            bare,
            ttft_s=ran.ttft_s,
            bound_s=ran.bounds.bound_s,
            limit=ran.bounds.limit,
            bounds=ran.bounds.bounds,
            traffic_bytes=ran.traffic_bytes,
            bytes=dict(ran.report.traffic),
            peak_kv_bytes=max(ran.report.peak_bytes),
            chunk_tokens=ran.schedule.meta.chunk_tokens,
            simulated_layers=ran.result.simulated_layers,
            decode=token_numbers(ran.schedule, case.profile, case.shape, case.cluster) if case.decode else None,
        )

    def _run(self, case: Case) -> Outcome:
        sched, report = self._planned(case)
        shape, cluster = case.shape, case.cluster
        result = simulate(
            sched, case.profile, shape=shape, layers=_layers(case), cluster=cluster, slowdown=case.factors()
        )
        return Outcome(
            case=case,
            schedule=sched,
            report=report,
            result=result,
            bounds=bounds(sched, case.profile, shape=shape, cluster=cluster),
        )

    def _planned(self, case: Case) -> tuple[Schedule, Report]:
        """Most plans do not depend on speeds: cases that differ in the profile or the seed share them."""
        profile = _NO_PROFILE if case.policy in BY_BYTES else case.profile
        key = replace(case, profile=profile, layers=None, spread=0.0, seed=0, decode=False)
        if key not in self._schedules:
            sched = plan(case.policy, case.request())
            self._schedules[key] = sched, verify(sched)
        return self._schedules[key]


_NO_PROFILE = Profile(
    name="none",
    physical=False,
    flops_s=1,
    memory_bytes_s=1,
    memory_bytes=1,
    link_bytes_s=1,
    link_latency_s=0,
    step_overhead_s=0,
    weight_bytes=1,
)


def _layers(case: Case) -> int | None:
    return None if case.layers is None or case.layers >= case.shape.num_layers else case.layers
