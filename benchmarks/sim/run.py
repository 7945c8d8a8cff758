"""How fast schedules are simulated, on one core, and what extrapolating layers costs in accuracy.

    python benchmarks/sim/run.py [--policy gather] [--topology switch] [--profile gpu-100g] [--large] [--out FILE]

Prints one line per case and writes a JSON object. Targets, on one core: 16K tokens on 16 nodes below 0.5 s, 128K on 64
nodes (256 tokens per node and chunk) below 10 s; layers may be extrapolated. The error of that is shown at 16 nodes,
against all layers. With --large also 1M tokens on 1,024 nodes in one chunk (two million rows): target 60 s and 8 GiB.
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

TOKENS_PER_NODE = 256  # per chunk
FEW_LAYERS = 4
SHAPE = replace(named_shape("qwen2.5-1.5b", dtype="bfloat16"), kv_bytes=1)
# (prompt tokens, nodes, simulated layers or None for all, target seconds or None): the last ones are the curve
CASES = (
    (1 << 14, 16, None, None),
    (1 << 14, 16, FEW_LAYERS, 0.5),
    (1 << 17, 64, FEW_LAYERS, 10),
    (1 << 15, 16, FEW_LAYERS, None),
    (1 << 16, 16, FEW_LAYERS, None),
    (1 << 17, 16, FEW_LAYERS, None),
)


LARGE = (1 << 20, 1024, FEW_LAYERS, 60)


def schedule(policy: str, prompt_tokens: int, num_nodes: int, topology: str = "switch") -> Schedule:
    """The policy's plan; beyond a hundred nodes in one chunk."""
    cluster = Cluster.uniform(topology, num_nodes)
    chunk = TOKENS_PER_NODE * num_nodes if num_nodes < 100 else prompt_tokens
    return plan(policy, PlanRequest(shape=SHAPE, cluster=cluster, prompt_tokens=prompt_tokens, chunk_tokens=chunk))


def measure(
    policy: str, profile: Profile, prompt_tokens: int, num_nodes: int, layers: int | None, topology: str = "switch"
) -> dict[str, Any]:
    """Simulate one case; CPU seconds, and the most memory so far."""
    sched = schedule(policy, prompt_tokens, num_nodes, topology)
    start = time.process_time()
    result = simulate(sched, profile, shape=SHAPE, layers=layers)
    cpu_s = time.process_time() - start
    least = bounds(sched, profile, shape=SHAPE)
    runs = len(sched) * result.simulated_layers
    return {
        "policy": policy,
        "prompt_tokens": prompt_tokens,
        "nodes": num_nodes,
        "num_rows": len(sched),
        "simulated_layers": result.simulated_layers,
        "ttft_s": result.ttft_s,
        "bound_s": least.bound_s,
        "limit": least.limit,
        "cpu_s": round(cpu_s, 3),
        "peak_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "us_per_row_and_layer": round(cpu_s / runs * 1e6, 2),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="simulate schedules")
    parser.add_argument("--policy", choices=NAMES, default="gather")
    parser.add_argument("--topology", default="switch")
    parser.add_argument("--large", action="store_true", help="1M tokens on 1,024 nodes too: minutes")
    parser.add_argument("--profile", choices=PROFILES, default="gpu-100g")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "latest.json")
    args = parser.parse_args()
    profile, rows = load_profile(args.profile), []
    for prompt, nodes, layers, target in (*CASES, *([LARGE] if args.large else ())):
        rows.append(measure(args.policy, profile, prompt, nodes, layers, args.topology) | {"target_s": target})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    error = rows[1]["ttft_s"] / rows[0]["ttft_s"] - 1
    print(f"extrapolating {FEW_LAYERS} of {SHAPE.num_layers} layers at 16 nodes: {error:+.2%}")
    result = environment(["python", *sys.argv]) | {"profile": args.profile, "rows": rows, "extrapolation_error": error}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"written to {args.out}")


if __name__ == "__main__":
    main()
