"""How near the predicted time to the first token comes to a real run, for each policy, on this machine.

    python benchmarks/prediction/run.py [MODEL] [--workers 2] [--lengths 2048,4096] [--rounds 3] [--out results.json]

Measures the cluster first (`mcf doctor --measure`, at the same number of workers), then plans, predicts and runs each
policy at each length, rounds interleaved; the median counts. Target: the prediction within 20 % of the run. Leave the
machine alone meanwhile. Under `tc` on the loopback interface (a rate of 1 Gbit/s, say) it tells the same of slow links.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from mcf.engine.clusters import cluster_of, predict
from mcf.engine.doctor.clusterfile import cluster_profile
from mcf.engine.doctor.visit import visit
from mcf.engine.llm import LLM, load
from mcf.engine.planner import make_plan
from mcf.errors import McfError
from mcf.policies import NAMES
from mcf.sim import Profile
from mcf.sim.profile import parse_profile

TARGET = 0.2


def measured_profile(model: str, workers: int, dtype: str) -> tuple[Profile, str]:
    """Measure this machine with the model's sizes; the profile and its text."""
    found = visit(model, workers=workers, dtype=dtype, is_measuring=True)
    if found.measured is None:
        sys.exit("the doctor has found an error: run `mcf doctor`")
    command = " ".join(sys.argv)
    text = cluster_profile(found.measured, found.survey, name="here", command=command, date="this run")
    return parse_profile(text, "here.toml").for_dtype(dtype), text


def predicted(llm: LLM, profile: Profile, policy: str, length: int) -> dict[str, Any]:
    """Predict one case with the budgets that the run has too: none."""
    cluster = cluster_of(profile, llm.shape, kv_memory_bytes=1 << 60)
    plan = make_plan(
        llm.shape,
        prompt_tokens=length,
        num_workers=cluster.num_nodes,
        cluster=cluster,
        policy=policy,
        chunk_tokens=llm.chunk_tokens,
        max_tokens=1,
    )
    told = predict(plan.schedule, profile, llm.shape)
    return {"predicted_s": told.ttft_s, "bound_s": told.bound_s, "limit": told.limit, "waiting_s": told.waiting_s}


def real(llm: LLM, policy: str, length: int) -> float:
    """Seconds to the first token of one run."""
    llm.policy = policy
    ids = [1 + index % (llm.shape.vocab_size - 1) for index in range(length)]
    return llm.generate(ids, max_tokens=1, ignore_eos=True).ttft_s


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--lengths", default="2048,4096")
    parser.add_argument("--policies", default=",".join(NAMES))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    profile, text = measured_profile(options.model, options.workers, options.dtype)
    cases = [(policy, int(length)) for length in options.lengths.split(",") for policy in options.policies.split(",")]
    with load(options.model, workers=options.workers, dtype=options.dtype) as llm:
        real(llm, cases[0][0], 64)
        told: dict[tuple[str, int], dict[str, Any]] = {}
        for case in cases:
            try:
                told[case] = predicted(llm, profile, *case)
            except McfError as error:
                print(f"{case[0]:<12} {case[1]:>7,}  left out: {error}")
        times: dict[tuple[str, int], list[float]] = {case: [] for case in told}
        for _ in range(options.rounds):
            for case in told:
                times[case].append(real(llm, *case))
    rows = [row_of(case, told[case], times[case]) for case in told]
    if options.out is not None:
        options.out.write_text(json.dumps({"profile": text, "load": os.getloadavg(), "rows": rows}, indent=1))


def row_of(case: tuple[str, int], told: dict[str, Any], times: list[float]) -> dict[str, Any]:
    """Print one case and return it."""
    took = statistics.median(times)
    error = told["predicted_s"] / took - 1
    mark = "" if abs(error) <= TARGET else "  beyond 20 %"
    print(
        f"{case[0]:<12} {case[1]:>7,}  predicted {told['predicted_s']:7.3f} s  took {took:7.3f} s  "
        f"{error:+6.1%}  limit {told['limit']}{mark}"
    )
    return {"policy": case[0], "prompt_tokens": case[1], "took_s": took, "times_s": times, "error": error, **told}


if __name__ == "__main__":
    main()
