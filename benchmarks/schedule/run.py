"""How fast schedules are written and judged: build and verify about a million rows, on one core.

    python benchmarks/schedule/run.py [--policy gather] [--nodes 64] [--rows 1000000] [--out results.json]

Prints one line per phase and writes a JSON object: CPU seconds and rows per second. Targets, on one core: build below
5 s, verify below 20 s for a million rows.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from mcf.bench.environment import environment
from mcf.cluster import Cluster
from mcf.model import ModelShape
from mcf.policies import NAMES, PlanRequest, plan
from mcf.schedule import digest, to_bytes, verify

TOKENS_PER_PIECE = 4  # small pieces: rows count here, not tokens
SHAPE = ModelShape(
    name="Qwen2.5-1.5B",
    num_layers=28,
    num_q_heads=12,
    num_kv_heads=2,
    head_dim=128,
    hidden_size=1536,
    intermediate_size=8960,
    vocab_size=151936,
    max_positions=1 << 20,
)
T = TypeVar("T")


def request(num_nodes: int, num_chunks: int) -> PlanRequest:
    """A prompt of so many chunks on a switch of so many nodes."""
    chunk = num_nodes * TOKENS_PER_PIECE
    return PlanRequest(
        shape=SHAPE,
        cluster=Cluster.uniform("switch", num_nodes),
        prompt_tokens=chunk * num_chunks,
        chunk_tokens=chunk,
    )


def chunks_for(policy: str, num_nodes: int, num_rows: int) -> int:
    """Chunks that give about so many rows: rows of an eight-chunk plan, scaled."""
    few = 8
    return max(1, round(few * num_rows / len(plan(policy, request(num_nodes, few)))))


def timed(what: Callable[[], T]) -> tuple[T, float]:
    """A function's result and the CPU seconds it took."""
    start = time.process_time()
    result = what()
    return result, time.process_time() - start


def measure(policy: str, num_nodes: int, num_rows: int) -> dict[str, Any]:
    """Build, serialise and verify one plan."""
    asked = request(num_nodes, chunks_for(policy, num_nodes, num_rows))
    sched, build_s = timed(lambda: plan(policy, asked))
    data, bytes_s = timed(lambda: to_bytes(sched))
    report, verify_s = timed(lambda: verify(sched))
    return {
        "policy": policy,
        "num_nodes": num_nodes,
        "num_chunks": sched.meta.num_chunks,
        "num_rows": report.num_rows,
        "num_bytes": len(data),
        "sha256": digest(data),
        "build_s": round(build_s, 3),
        "to_bytes_s": round(bytes_s, 3),
        "verify_s": round(verify_s, 3),
        "target_s": {"build": 5, "verify": 20},
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="build and verify a large schedule")
    parser.add_argument("--policy", choices=NAMES, default="gather")
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "latest.json")
    args = parser.parse_args()
    result = environment(["python", *sys.argv]) | measure(args.policy, args.nodes, args.rows)
    num_rows = result["num_rows"]
    print(f"{args.policy}: {num_rows} rows, {args.nodes} nodes, {result['num_chunks']} chunks")
    for phase in ("build_s", "to_bytes_s", "verify_s"):
        print(f"  {phase:<11} {result[phase]:8.3f} CPU s, {num_rows / max(result[phase], 1e-3):12,.0f} rows/s")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"  written to {args.out}")


if __name__ == "__main__":
    main()
