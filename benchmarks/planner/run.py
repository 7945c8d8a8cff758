"""How fast plans are made: closed forms of every policy, and schedules of 1.3 million steps; on one core.

    python benchmarks/planner/run.py [--out results.json]     decisions, closed forms, build and verify
    python benchmarks/planner/run.py --wide                   1M tokens on 1,024 nodes: build and verify, two minutes
    python benchmarks/planner/run.py --exact                  the six exact instances, up to a minute

Targets, on one core: closed forms of all policies for 1M tokens on 1,024 nodes in 256 chunks below 1 s; a schedule of
1.3 million steps built below 7 s and verified below 30 s.

Every delivery is a receive with a row of its own. On 1,024 nodes an all-to-all therefore has a million rows per chunk,
and 256 chunks of it 268 million, twice that with the history: 20 to 40 GiB, which no target means. `--wide` measures
what 1.3 million rows hold there: the same gathering by doubling, ten sends and ten receives per node and chunk, each of
twice as many makers as the one before. 23 rows per node and chunk are 1.5 million for 64 chunks of 16 tokens per node.
"""

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mcf.bench.environment import environment
from mcf.cluster import Cluster, Topology
from mcf.mars import FORMS, REFERENCES, Job, Rates, Setting, predict, solve, solve_groups
from mcf.model import named_shape
from mcf.policies import PlanRequest, plan
from mcf.policies.common import start as begin
from mcf.schedule import Schedule, head_tail, verify

SHAPE = named_shape("qwen2.5-1.5b", dtype="bfloat16")
GPU = Rates(P=200e12, BW=12.5e9, tau=5e-6, BW_mem=2.039e12, w=2.0, overhead=5e-6)
T = TypeVar("T")


def timed(what: Callable[[], T]) -> tuple[T, float]:
    """A function's result and the CPU seconds it took."""
    start = time.process_time()
    result = what()
    return result, time.process_time() - start


def closed_forms(num_nodes: int, num_chunks: int, tokens: int) -> dict[str, float]:
    """CPU seconds of each policy's closed form, decisions and prediction included."""
    topology = Topology.parse("switch", num_nodes)
    job = Job(shape=SHAPE, topology=topology, S=tokens, B=tokens // num_chunks, rates=GPU)
    tight = job.replace(S_node=4 * tokens // num_nodes * SHAPE.kv_token_bytes)
    cases = {name: (make, tight if name.startswith("mars") else job) for name, make in (FORMS | REFERENCES).items()}
    return {name: round(timed(lambda m=m, j=j: predict(m(j), GPU))[1], 4) for name, (m, j) in cases.items()}


def steps(policy: str, num_nodes: int, num_rows: int) -> dict[str, Any]:
    """Build and verify a schedule of about so many rows: the cost grows with rows, so a curve says all."""

    def asked(num_chunks: int) -> PlanRequest:
        size = 4 * num_nodes
        cluster = Cluster.uniform("switch", num_nodes)
        return PlanRequest(shape=SHAPE, cluster=cluster, prompt_tokens=size * num_chunks, chunk_tokens=size, rates=GPU)

    num_chunks = max(1, round(8 * num_rows / len(plan(policy, asked(8)))))
    sched, build_s = timed(lambda: plan(policy, asked(num_chunks)))
    _, verify_s = timed(lambda: verify(sched))
    return {
        "policy": policy, "num_nodes": num_nodes, "num_chunks": num_chunks, "num_rows": len(sched),
        "build_s": round(build_s, 2), "verify_s": round(verify_s, 2),
    }  # fmt: skip


def doubling(request: PlanRequest) -> Schedule:
    """All KV to all nodes in log2(N) exchanges per chunk and layer; no decode template."""
    b, num_nodes = begin("doubling", request, head_tail), request.num_nodes
    for chunk in range(b.num_chunks):
        seen = (0, chunk + 1)
        for node in range(num_nodes):
            b.produce(node, chunk)
            for k in range(num_nodes.bit_length() - 1):
                first = node >> k << k
                b.send_kv(node, [node ^ (1 << k)], chunk, chunks=seen, makers=(first, first + (1 << k)))
            b.merge(node, chunk, [b.attend(node, chunk, chunks=seen, makers=(0, num_nodes))])
    return b.build()


def wide(num_chunks: int, num_nodes: int = 1024, tokens: int = 2**20) -> dict[str, Any]:
    """Build and verify the doubling schedule of a million tokens."""
    cluster = Cluster.uniform("switch", num_nodes)
    asked = PlanRequest(shape=SHAPE, cluster=cluster, prompt_tokens=tokens, chunk_tokens=tokens // num_chunks)
    sched, build_s = timed(lambda: doubling(asked))
    report, verify_s = timed(lambda: verify(sched))
    return {
        "policy": "doubling", "num_nodes": num_nodes, "num_chunks": num_chunks, "num_rows": report.num_rows,
        "build_s": round(build_s, 2), "verify_s": round(verify_s, 2),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }  # fmt: skip


def exact() -> list[dict[str, Any]]:
    """The six instances: fetching alone and with groups, against the solver's optimum and its proven bound."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from exact import fetch_only, with_routing

    rates, out = Rates(P=200e12, BW=1.25e9), []
    for C in (4, 5, 6):
        for share in (1.15, 2):
            budget = round(share * 256 * C * 28672)
            s = Setting(shape=SHAPE, N=4, S=1024 * C, B=1024, S_node=budget, deg=2, state_bytes=2)
            found, seconds = timed(lambda s=s: with_routing(s, rates, seconds=90.0))
            mine = math.fsum(c.T for c in solve_groups(s, rates, overlaps=True).chunks)
            out.append({
                "C": C, "share": share, "fetch_only_ms": fetch_only(s, rates).value * 1e3,
                "closed_form_ms": math.fsum(c.T for c in solve(s, rates).chunks) * 1e3, "groups_ms": mine * 1e3,
                "exact_ms": found.value * 1e3, "bound_ms": found.bound * 1e3, "over": mine / found.value - 1,
                "solver_s": round(seconds, 1),
            })  # fmt: skip
    return out


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="closed forms, decisions, and schedules of a million steps")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    result = environment(["python", *sys.argv]) | {"seed": None}
    if args.exact:
        result["exact"] = exact()
        for row in result["exact"]:
            print(" ".join(f"{key}={value:.4g}" for key, value in row.items()))
    elif args.wide:
        result |= {"wide": [], "target_s": {"build": 7, "verify": 30}}
        for num_chunks in (16, 32, 64):
            result["wide"].append(row := wide(num_chunks))
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), "(targets 7, 30)", flush=True)
    else:
        forms = closed_forms(1024, 256, 2**20)
        result |= {"closed_forms_s": forms, "all_s": round(sum(forms.values()), 3)}
        print(f"closed forms, 1M tokens on 1,024 nodes, 256 chunks: {result['all_s']} CPU s (target 1)")
        print("  " + ", ".join(f"{name} {seconds}" for name, seconds in forms.items()))
        result["steps"] = []
        for policy, rows in (("gather", 330_000), ("gather", 650_000), ("gather", 1_300_000), ("mars", 1_300_000)):
            result["steps"].append(row := steps(policy, 64, rows))
            print("  " + ", ".join(f"{key} {value}" for key, value in row.items()), "(targets 7, 30)")
        result["target_s"] = {"closed_forms": 1, "build": 7, "verify": 30}
    out = args.out or Path(__file__).parent / "results" / ("exact.json" if args.exact else "latest.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {out}")


if __name__ == "__main__":
    main()
