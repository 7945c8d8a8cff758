"""Two workers on two hosts that are network namespaces, joined by a link of a given rate: root, ip and tc needed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RATES = {"veth": None, "1gbit": "1gbit", "100mbit": "100mbit"}


def why_not() -> str:
    """Return what is missing; empty where nothing is."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "needs ip and tc (Debian: iproute2)"
    return "" if (ROOT / "tests" / "netns.py").exists() else "needs the checkout's tests/netns.py"


def measure(folder: Path, dtype: str, num_tokens: int, rate: str, rounds: int) -> dict[str, Any]:
    """Run `mcf bench prefill` in a torchrun world of two hosts; return its object."""
    sys.path.insert(0, str(ROOT / "tests"))
    import netns  # needs pytest, and root

    with netns.hosts(2, rate=RATES[rate]) as made:
        processes = [_start(made, host, folder, dtype, num_tokens, rounds) for host in made]
        outs = [process.communicate(timeout=1800) for process in processes]
    for process, (_, err) in zip(processes, outs, strict=True):
        if process.returncode:
            raise RuntimeError(f"a host ended with exit code {process.returncode}: {err[-500:]}")
    found: dict[str, Any] = json.loads(next(line for line in outs[0][0].splitlines() if line.startswith("{")))
    return found


def _start(made: Any, host: Any, folder: Path, dtype: str, num_tokens: int, rounds: int) -> "subprocess.Popen[str]":
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    launcher += [f"--node-rank={host.index}", f"--master-addr={made[0].address}", "--master-port=29511", "-m", "mcf"]
    bench = ["bench", "prefill", str(folder), "--prompt-tokens", str(num_tokens), "--dtype", dtype, "--workers", "2"]
    bench += ["--threads", "1", "--rounds", str(rounds), "--json"]
    return subprocess.Popen(
        host.inside(*launcher, *bench),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
