"""Predicted against measured prefill: the same schedule in `mcf.sim` and on real workers behind throttled links.

    sudo .venv/bin/python benchmarks/sim/validate.py            2 and 4 workers, 100 Mbit/s and 1 Gbit/s, every policy
    sudo .venv/bin/python benchmarks/sim/validate.py --workers 4 --rate 100mbit     a quarter of it, in three minutes
    .venv/bin/python benchmarks/sim/validate.py --local         on loopback, unthrottled: no root, two minutes

Rows of the same setting in the file of results are replaced, others stay, each with the command that it came from: four
runs of a quarter give the whole.

Each worker is a host of its own: a network namespace on a bridge, its cable limited by `tbf` in both directions
(tests/netns.py; needs root, `ip` and `tc`). The world is torchrun's. Rank 0 loads the model and measures all workers at
once with the doctor's gauges, so the rates are those of this many workers on this machine; `mars` decides by them.
After one run to warm up every policy runs up to `--repeats` times, of which the median counts; not again when it has
taken `--seconds`. Wall time is from the first to the last event of prefill
in the trace; model time is what `mcf.sim` says of the very schedule that ran, all layers simulated. Each has a column
of its own. The target is a ratio within 20 %; runs on a machine that is not idle say nothing. Beside the ratio stand
its parts, predicted and measured: work and waiting for communication on the node that ends last, and a decode step.
Where the ratio is outside the band, the parts that are off by more than the band are named.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import mcf
from mcf.bench.environment import environment
from mcf.engine.clusters import speeds_of
from mcf.engine.doctor.clusterfile import RATES
from mcf.engine.doctor.measure import Measurement, measure
from mcf.engine.result import Result
from mcf.errors import UserError
from mcf.policies import NAMES
from mcf.schedule.steps import PREFILL
from mcf.sim import Profile, bounds, decode_s, load_profile, simulate
from mcf.trace import Trace

ROOT = Path(__file__).parents[2]
TEXT = "The quick brown fox jumps over the lazy dog, and the river runs on to the sea. "
WORKERS, LINKS = (2, 4), ("100mbit", "1gbit")
BITS_S = {"mbit": 1e6, "gbit": 1e9}
FRAMING = 1448 / 1514  # bytes of payload per byte that tbf counts: TCP segments of 1,448 in frames of 1,514
BAND = 0.2
TOKENS = 5  # the first ends prefill, the others are decode steps
PORT = "29511"
PATIENCE_S = 3600.0


def profile_of(found: Measurement, *, rate: str | None) -> Profile:
    """The measured profile: medians over the workers, float32; behind `tbf` a port carries what the limit says."""
    port = median(found.port_bytes_s)
    if rate is not None:
        port = min(port, float(rate[:-4]) * BITS_S[rate[-4:]] / 8 * FRAMING)
    return replace(
        load_profile("cpu-1g"),
        name=f"measured, {len(found.rates)} workers{f', {rate}' if rate else ''}",
        **{key: median(each[gauge] for each in found.rates) for key, (gauge, _) in RATES.items()},
        link_bytes_s=port,
        link_latency_s=median(found.link_latency_s.values()),
        weight_bytes=4,
    )


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Rank 0: load, measure, run every policy and predict it."""
    rows = []
    with mcf.load(options.model, workers=options.workers, threads=1) as llm:  # hosts that share one machine's cores
        found = measure(llm.world, num_threads=[llm.world.num_threads_per_worker] * options.workers, shape=llm.shape)
        profile = profile_of(found, rate=options.rate)
        llm.rates, llm.chunk_tokens = speeds_of(profile, options.workers), options.chunk_tokens
        ids = (llm.encode(TEXT * (options.prompt_tokens // 8), raw=True) * 2)[: options.prompt_tokens]
        llm.generate(ids, max_tokens=TOKENS)  # warm
        for policy in options.policies:
            llm.policy = policy
            try:
                rows.append(_row(llm, ids, profile, options))
            except UserError as error:
                rows.append({"policy": policy, "workers": options.workers, "rate": options.rate, "why": str(error)})
            print(_line(rows[-1]), file=sys.stderr, flush=True)
    return [
        row | {"profile": {k: v for k, v in asdict(profile).items() if isinstance(v, int | float | str)}}
        for row in rows
    ]


def _row(llm: "mcf.LLM", ids: list[int], profile: Profile, options: argparse.Namespace) -> dict[str, Any]:
    runs: list[Result] = []
    while len(runs) < options.repeats and (not runs or sum(map(_wall, runs)) < options.seconds):
        runs.append(llm.generate(ids, max_tokens=TOKENS, ignore_eos=True))
    ran = sorted(runs, key=_wall)[len(runs) // 2]
    model = simulate(ran.schedule, profile, shape=llm.shape)
    end = float(model.trace.events["t_end"].max())
    spans = ((model.trace, (0.0, end)), (ran.trace, _span(ran)))
    parts = {
        "compute": tuple(_part(*span, "compute_s") for span in spans),
        "exposed": tuple(_part(*span, "exposed_communication_s") for span in spans),
        "decode": (decode_s(ran.schedule, profile, shape=llm.shape), median(ran.token_s)),
    }
    measured = median(map(_wall, runs))
    return {
        "policy": llm.policy,
        "workers": options.workers,
        "rate": options.rate,
        "prompt_tokens": len(ids),
        "chunk_tokens": ran.chunk_tokens,
        "model_time_s": model.ttft_s,
        "wall_time_s": measured,
        "wall_times_s": [_wall(run) for run in runs],
        "ratio": model.ttft_s / measured,
        "parts": {name: {"model_s": mine, "wall_s": theirs} for name, (mine, theirs) in parts.items()},
        "off": [name for name, pair in parts.items() if _is_off(*pair, measured if name != "decode" else pair[1])],
        "limit": bounds(ran.schedule, profile, shape=llm.shape).limit,
        "bytes": sum(ran.bytes.values()),
    }


def _span(ran: Result) -> tuple[float, float]:
    """From the first to the last event of prefill."""
    return ran.trace.interval(stage=PREFILL)


def _wall(ran: Result) -> float:
    start, end = _span(ran)
    return end - start


def _part(trace: Trace, span: tuple[float, float], name: str) -> float:
    """Seconds of a part of prefill on the node that ends last."""
    return float(trace.breakdown(trace.last_node(), *span)[name])


def _is_off(model_s: float, wall_s: float, whole_s: float) -> bool:
    """Say whether a part differs by more than the band, of itself and of a tenth of the whole."""
    return abs(model_s - wall_s) > max(BAND * wall_s, BAND / 2 * whole_s)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['policy']:<11} N = {row['workers']} {row['rate'] or 'loopback':<9}"
    if "why" in row:
        return f"{head} no: {row['why']}"
    mark = "" if abs(row["ratio"] - 1) <= BAND else f"   outside the band: {_off_words(row)}"
    return (
        f"{head} model time {row['model_time_s']:8.3f} s   wall time {row['wall_time_s']:8.3f} s   "
        f"ratio {row['ratio']:.2f}   limit {row['limit']}{mark}"
    )


def _off_words(row: dict[str, Any]) -> str:
    parts = ((name, row["parts"][name]) for name in row["off"])
    words = [f"{name} {part['model_s']:.3f} s for {part['wall_s']:.3f} s" for name, part in parts]
    return ", ".join(words) or "no part alone"


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of earlier runs, those of the same policy, workers and rate replaced."""
    done = {_key(row) for row in new}
    return sorted([*(row for row in old if _key(row) not in done), *new], key=_key)


def _key(row: dict[str, Any]) -> tuple[int, str, str]:
    return row["workers"], row["rate"] or "", row["policy"]


# --- hosts ---


def over_hosts(options: argparse.Namespace, workers: int, rate: str) -> list[dict[str, Any]]:
    """Run `compare` in a world of torchrun over throttled namespaces."""
    sys.path.insert(0, str(ROOT / "tests"))
    from netns import hosts  # needs pytest and root: only here

    with tempfile.TemporaryDirectory() as folder, hosts(workers, rate=rate) as made:
        out = Path(folder) / "rows.json"
        inside = [*_options(options), "--inside", str(out), "--workers", str(workers), "--rate", rate]
        world = ["--nnodes", str(workers), "--nproc-per-node", "1", "--master-addr", made[0].address]
        env = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        started = [
            subprocess.Popen(
                host.inside(
                    *(sys.executable, "-m", "torch.distributed.run", *world, "--master-port", PORT),
                    *("--node-rank", str(host.index), str(Path(__file__).resolve()), *inside),
                ),
                env=env,
            )
            for host in made
        ]
        try:
            codes = [process.wait(PATIENCE_S) for process in started]
        finally:
            for process in started:
                process.kill()
        if any(codes) or not out.exists():
            raise SystemExit(f"the world of {workers} hosts at {rate} ended with {codes}: see above")
        return list(json.loads(out.read_text()))


def _options(options: argparse.Namespace) -> list[str]:
    return [
        *("--model", options.model, "--prompt-tokens", str(options.prompt_tokens)),
        *("--repeats", str(options.repeats), "--policies", ",".join(options.policies)),
        *("--chunk-tokens", str(options.chunk_tokens), "--seconds", str(options.seconds)),
    ]


def main() -> None:
    """Measure, print a line each, and write a JSON object."""
    parser = argparse.ArgumentParser(description="predicted against measured prefill")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--prompt-tokens", type=int, default=1024)
    parser.add_argument("--chunk-tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8.0, help="no run more of a policy after so long")
    parser.add_argument("--policies", type=lambda text: text.split(","), default=list(NAMES))
    parser.add_argument("--workers", type=int, default=None, help="instead of 2 and 4")
    parser.add_argument("--rate", default=None, help="instead of 100mbit and 1gbit")
    parser.add_argument("--local", action="store_true", help="loopback, unthrottled")
    parser.add_argument("--inside", default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "validate.json")
    options = parser.parse_args()
    if options.inside:
        Path(options.inside).write_text(json.dumps(compare(options)), encoding="utf-8")
        return
    rows: list[dict[str, Any]] = []
    for workers in [options.workers] if options.workers else WORKERS:
        if options.local:
            rows += compare(argparse.Namespace(**vars(options) | {"workers": workers, "rate": None}))
            continue
        for rate in [options.rate] if options.rate else LINKS:
            rows += over_hosts(options, workers, rate)
    print("\n".join(map(_line, rows)))
    ratios = [row["ratio"] for row in rows if "ratio" in row]
    print(f"{sum(abs(ratio - 1) <= BAND for ratio in ratios)} of {len(ratios)} within {BAND:.0%}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    head = environment(["python", *sys.argv])
    rows = [row | {"command": head["command"]} for row in rows]
    if options.out.exists():
        rows = merged(json.loads(options.out.read_text(encoding="utf-8"))["rows"], rows)
    options.out.write_text(json.dumps(head | {"rows": rows}, indent=2) + "\n", encoding="utf-8")
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
