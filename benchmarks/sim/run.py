"""How fast schedules are simulated, on one core, and what extrapolating layers costs in accuracy.

    python benchmarks/sim/run.py [--policy gather] [--topology switch] [--profile gpu-100g] [--large] [--out FILE]

Prints one line per case and writes a JSON object. Targets, on one core: 16K tokens on 16 nodes, all layers, below
0.5 s; 128K on 64 nodes (256 tokens per node and chunk) below 10 s, four layers of it simulated and the others
extrapolated. The error of that is shown at 16 nodes, against all layers. The last cases are the curve: seconds grow
with the steps.

With --large only 1M tokens on 1,024 nodes, in one chunk or --chunks of them: three million rows for each, all layers.
There every node does the same, and one is simulated for all; at 64 nodes the same is done both ways, and compared. A
history's receives are put in an order that is the same for all nodes (`sim.fold.turned`); what that changes is shown at
16 nodes. Target: 60 s (writing the schedule is in it) and 8 GiB. Nothing is drawn by chance: there is no seed.
"""

import argparse
import json
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcf.bench.environment import environment
from mcf.cluster import Cluster
from mcf.model import named_shape
from mcf.policies import NAMES, PlanRequest, plan
from mcf.schedule import Schedule
from mcf.sim import NAMES as PROFILES
from mcf.sim import Profile, bounds, load_profile, simulate
from mcf.sim.fold import turned

TOKENS_PER_NODE = 256  # per chunk
FEW_LAYERS = 4
SHAPE = replace(named_shape("qwen2.5-1.5b", dtype="bfloat16"), kv_bytes=1)
# (prompt tokens, nodes, simulated layers or None for all, target seconds or None): the last ones are the curve
CASES = (
    (1 << 14, 16, None, 0.5),
    (1 << 14, 16, FEW_LAYERS, None),
    (1 << 17, 64, FEW_LAYERS, 10),
    (1 << 15, 16, FEW_LAYERS, None),
    (1 << 16, 16, FEW_LAYERS, None),
    (1 << 17, 16, FEW_LAYERS, None),
)
LARGE, LARGE_TARGET_S, LARGE_TARGET_BYTES = (1 << 20, 1024), 60, 8 << 30
COMPARED = (1 << 16, 64)


def schedule(policy: str, prompt_tokens: int, num_nodes: int, topology: str, chunk_tokens: int) -> Schedule:
    """The policy's plan."""
    cluster = Cluster.uniform(topology, num_nodes)
    asked = PlanRequest(shape=SHAPE, cluster=cluster, prompt_tokens=prompt_tokens, chunk_tokens=chunk_tokens)
    return plan(policy, asked)


def measure(sched: Schedule, profile: Profile, layers: int | None, *, fold: bool = True) -> dict[str, Any]:
    """Simulate a schedule; CPU seconds, and the most memory so far."""
    start = time.process_time()
    result = simulate(sched, profile, shape=SHAPE, layers=layers, fold=fold)
    cpu_s = time.process_time() - start
    least = bounds(sched, profile, shape=SHAPE)
    runs = len(sched) * result.simulated_layers
    return {
        "policy": sched.meta.policy,
        "prompt_tokens": sched.meta.prompt_tokens,
        "nodes": sched.meta.num_nodes,
        "chunks": sched.meta.num_chunks,
        "num_rows": len(sched),
        "simulated_layers": result.simulated_layers,
        "folded": result.fold is not None,
        "ttft_s": result.ttft_s,
        "bound_s": least.bound_s,
        "limit": least.limit,
        "cpu_s": round(cpu_s, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "us_per_row_and_layer": round(cpu_s / runs * 1e6, 3),
    }


def show(row: dict[str, Any]) -> dict[str, Any]:
    """Print a row."""
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


def usual(policy: str, profile: Profile, topology: str) -> dict[str, Any]:
    """The cases, and what extrapolating layers costs."""
    rows = []
    for prompt, nodes, layers, target in CASES:
        sched = schedule(policy, prompt, nodes, topology, TOKENS_PER_NODE * nodes)
        rows.append(show(measure(sched, profile, layers) | {"target_s": target}))
    error = rows[1]["ttft_s"] / rows[0]["ttft_s"] - 1
    print(f"extrapolating {FEW_LAYERS} of {SHAPE.num_layers} layers at 16 nodes: {error:+.2%}")
    return {"rows": rows, "extrapolation_error": error}


def large(policy: str, profile: Profile, topology: str, num_chunks: int) -> dict[str, Any]:
    """A million tokens on 1,024 nodes, and 64 nodes both ways."""
    start = time.process_time()
    sched = turned(schedule(policy, *LARGE, topology, LARGE[0] // num_chunks))
    written_s = time.process_time() - start
    row = show(measure(sched, profile, None) | {"plan_cpu_s": round(written_s, 2), "target_s": LARGE_TARGET_S})
    sched = turned(schedule(policy, *COMPARED, topology, COMPARED[0] // num_chunks))
    folded, whole = (show(measure(sched, profile, None, fold=fold)) for fold in (True, False))
    error = folded["ttft_s"] / whole["ttft_s"] - 1
    print(f"one node for all at {COMPARED[1]} nodes: {error:+.2%}, to the last bit: {not error}")
    sched = schedule(policy, 1 << 14, 16, topology, (1 << 14) // num_chunks)
    before, after = (simulate(form, profile, shape=SHAPE).ttft_s for form in (sched, turned(sched)))
    print(f"receives in an order for all nodes, at 16 nodes: {after / before - 1:+.2%}")
    return {
        "rows": [row, folded, whole], "folding_error": error, "turning_error": after / before - 1,
        "target_bytes": LARGE_TARGET_BYTES,
    }  # fmt: skip


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="simulate schedules")
    parser.add_argument("--policy", choices=NAMES, default="gather")
    parser.add_argument("--topology", default="switch")
    parser.add_argument("--large", action="store_true", help="1M tokens on 1,024 nodes")
    parser.add_argument("--chunks", type=int, default=1, help="chunks of it")
    parser.add_argument("--profile", choices=PROFILES, default="gpu-100g")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "latest.json")
    args = parser.parse_args()
    asked = args.policy, load_profile(args.profile), args.topology
    found = large(*asked, args.chunks) if args.large else usual(*asked)
    result = environment(["python", *sys.argv]) | {"profile": args.profile, "seed": None} | found
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
