"""Cycles of the simulated hardware against model time on `kr260-rtl`, schedule by schedule.

    python benchmarks/rtl/calibrate.py                  run the hardware (minutes), compare with the profile, in JSON
    python benchmarks/rtl/calibrate.py --cycles FILE    the same from the cycles in an earlier result: seconds
    ... --large                                         also 16 nodes, and payloads of eight times the bytes
    ... --decode                                        also a decode step, part by part (calibrate_decode.py)

The schedules are the conformance schedules of the hardware's executor and every policy on meshes of 2x2 and 4x1. In
both, computing takes no time: the executor's stand-ins for the compute half answer at once, and the profile is made
infinitely fast. What is compared is prefill, from the first row's start to the last row's end. `BAND` is the target
where no tokens are decoded behind it. Otherwise nodes that are done early begin to decode while others still work; the
model of prefill leaves that out, and the hardware's prefill ends some hundred cycles later, once.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrate_decode import all_steps, compared_steps

from mcf import policies
from mcf.bench.environment import environment
from mcf.cluster import Cluster
from mcf.errors import UserError
from mcf.model import ModelShape
from mcf.policies import PlanRequest, plan
from mcf.rtl.routes import Mesh
from mcf.rtl.run import CLOCK_HZ, run
from mcf.schedule import Schedule
from mcf.schedule.steps import DECODE, PREFILL, SEND
from mcf.sim import Profile, load_profile, simulate
from mcf.testing import random_qkv
from mcf.testing.drawing import random_schedule
from mcf.testing.policies import TINY
from mcf.testing.recipe import Recipe

BAND = 0.05
PROFILE = "kr260-rtl"
MESHES = {"mesh:2x2": Mesh(width=2, height=2), "mesh:4x1": Mesh(width=4, height=1)}
DECODED = (0, 3)  # tokens behind the prompt
SIZES: dict[str, Any] = {"prompt_tokens": 1024, "chunk_tokens": 512, "max_new_tokens": 3}
CONFORMANCE = (("ring", "switch"), ("gather", "ring"), ("gather", "switch"), ("mars-paper", "switch"))
SEEDS = (2, 5, 7)
LARGE = ("ring", "gather", "one-shot", "mars-paper", "mars")
WIDE = (("one-shot", "mesh:2x2"), ("mars", "mesh:2x2"), ("gather", "switch"), ("mars-paper", "switch"))
OF_SHAPE = ("num_layers", "num_q_heads", "num_kv_heads", "head_dim", "kv_bytes", "act_bytes", "kv_scale_bytes")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A schedule, and the mesh on which the hardware runs it."""

    name: str
    schedule: Schedule
    mesh: Mesh

    def model_cycles(self, profile: Profile) -> float:
        """Prefill in model time, in cycles of the assumed clock."""
        shape = replace(TINY, **{name: getattr(self.schedule.meta, name) for name in OF_SHAPE})
        events = simulate(on_mesh(self.schedule, self.mesh), profile, shape=shape).trace.events
        return float(events["t_end"].max()) * CLOCK_HZ

    def hardware_cycles(self, decode_tokens: int) -> dict[str, int]:
        """Cycles of prefill and of each decoded token. Raises UserError kinds where the hardware cannot."""
        tensors = random_qkv(self.schedule.meta, decode_tokens=decode_tokens)
        events = run(self.schedule, *tensors, decode_tokens=decode_tokens, mesh=self.mesh).trace.events
        prefill, decode = (events[events["stage"] == stage] for stage in (PREFILL, DECODE))
        found = {"prefill": round(float(prefill["t_end"].max() - events["t_start"].min()) * CLOCK_HZ)}
        if decode_tokens:
            took = float(decode["t_end"].max() - decode["t_start"].min()) * CLOCK_HZ
            found["decode_token"] = round(took / decode_tokens)
        return found


def cases() -> Iterator[Case]:
    """Every policy on every mesh, and the conformance schedules' other kinds on 2x2."""
    for topology, mesh in MESHES.items():
        for policy in policies.NAMES:
            yield _planned(policy, topology, mesh)
    for policy, topology in CONFORMANCE:
        yield _planned(policy, topology, MESHES["mesh:2x2"])
    sizes = {"num_nodes": 4, "page_tokens": 64, "multicast": True, **SIZES}
    for seed in SEEDS:
        sched = random_schedule(Recipe(**sizes, seed=seed))
        yield Case(name=f"random {seed}", schedule=sched, mesh=MESHES["mesh:2x2"])


def large_cases() -> Iterator[Case]:
    """16 nodes, and heads of 32 instead of 4."""
    for policy in LARGE:
        yield _planned(policy, "mesh:4x4", Mesh(width=4, height=4))
    wide = replace(TINY, head_dim=32)
    for policy, topology in WIDE:
        found = _planned(policy, topology, MESHES["mesh:2x2"], wide)
        yield replace(found, name=f"{found.name}, heads of 32")


def _planned(policy: str, topology: str, mesh: Mesh, shape: ModelShape = TINY) -> Case:
    cluster = Cluster.uniform(topology, mesh.num_nodes)
    sched = plan(policy, PlanRequest(shape=shape, cluster=cluster, **sizes_on(mesh.num_nodes)))
    return Case(name=f"{policy} on {topology}", schedule=sched, mesh=mesh)


def sizes_on(num_nodes: int) -> dict[str, Any]:
    """The same tokens of a chunk for each node."""
    scaled = {name: SIZES[name] * num_nodes // 4 for name in ("prompt_tokens", "chunk_tokens")}
    return SIZES | scaled


def on_mesh(sched: Schedule, mesh: Mesh) -> Schedule:
    """The schedule with the ways of the hardware (`mcf.rtl.embed`): not its own where it has another topology."""
    topology = mesh.topology
    if sched.meta.topology == topology.name:
        return sched
    steps, routes = sched.steps.copy(), []
    for row in (steps["kind"] == SEND).nonzero()[0].tolist():
        root, receivers = int(steps["node"][row]), tuple(sched.receivers(row))
        is_one = len(receivers) == 1
        steps["route"][row] = len(routes)
        routes.append(tuple(topology.route(root, receivers[0]) if is_one else topology.multicast(root, receivers)))
    meta = replace(sched.meta, topology=topology.name)
    return sched.replace(meta=meta, steps=steps, routes=tuple(routes))


def infinitely_fast(profile: Profile) -> Profile:
    """The profile, with no time for computing."""
    return replace(profile, flops_s=1e30, attention_flops_s=1e30, memory_bytes_s=1e30)


def measured(case: Case, decoded: Sequence[int] = DECODED) -> Iterator[dict[str, Any]]:
    """Rows of one schedule, one for each number of decoded tokens; or the reason why there are none."""
    for tokens in decoded:
        row: dict[str, Any] = {"schedule": case.name, "decode_tokens": tokens}
        try:
            yield row | {"cycles": case.hardware_cycles(tokens)}
        except UserError as error:
            yield row | {"refused": str(error)}
            return


def compared(rows: list[dict[str, Any]], profile: Profile) -> list[dict[str, Any]]:
    """The rows with model time and its ratio to the hardware's."""
    by_name = {case.name: case for case in (*cases(), *large_cases())}
    model = {name: by_name[name].model_cycles(profile) for name in {row["schedule"] for row in rows if "cycles" in row}}
    out = []
    for row in rows:
        if "cycles" in row:
            cycles = model[row["schedule"]]
            row = row | {"model": round(cycles), "ratio": round(cycles / row["cycles"]["prefill"], 4)}
        out.append(row)
    return out


def worst(rows: list[dict[str, Any]]) -> float:
    """The largest distance of a ratio from 1."""
    return max(abs(row["ratio"] - 1) for row in rows if "ratio" in row and row["decode_tokens"] == 0)


def outside(rows: list[dict[str, Any]]) -> list[str]:
    """Schedules whose ratio is not within the band, nothing being decoded behind the prompt."""
    return sorted(row["schedule"] for row in rows if row["decode_tokens"] == 0 and abs(row.get("ratio", 1) - 1) > BAND)


def main() -> None:
    """Print a line for each schedule, and write one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", help="a result whose cycles are taken instead of running the hardware")
    parser.add_argument("--large", action="store_true", help="16 nodes, and larger payloads, too")
    parser.add_argument("--decode", action="store_true", help="a decode step, too")
    parser.add_argument("--out", help="where the JSON object goes; otherwise to the terminal")
    args = parser.parse_args()
    profile = infinitely_fast(load_profile(PROFILE))
    known = json.loads(Path(args.cycles).read_text(encoding="utf-8")) if args.cycles else {}
    rows = known.get("rows") or [row for case in cases() for row in measured(case)]
    if args.large and not known:
        rows += [row for case in large_cases() for row in measured(case, DECODED[:1])]
    steps = known.get("decode") or ([*all_steps()] if args.decode else [])
    steps = compared_steps(steps, load_profile(PROFILE))
    rows = compared(rows, profile)
    for row in rows:
        said = row.get("refused") or f"{row['cycles']['prefill']:>7,} {row['model']:>7,} {row['ratio'] - 1:+.1%}"
        print(f"{row['schedule']:24} {row['decode_tokens']} {said}", file=sys.stderr)
    for step in steps:
        print(
            f"decode, {step['nodes']} nodes, {step['context']:,} tokens {step['cycles']} {step['ratio']}",
            file=sys.stderr,
        )
    label = load_profile(PROFILE).label
    print(f"worst {worst(rows):.1%} on {label}; outside {BAND:.0%}: {outside(rows)}", file=sys.stderr)
    found = environment(["python", *sys.argv]) | {"profile": label, "band": BAND, "rows": rows, "decode": steps}
    text = json.dumps(found, indent=1)
    if args.out:
        Path(args.out).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
