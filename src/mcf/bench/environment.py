"""Where and how something was measured: machine, versions, command, load. All benchmarks write this."""

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mcf.dist.worker import versions

_MEMINFO, _CPUINFO = Path("/proc/meminfo"), Path("/proc/cpuinfo")


def environment(command: Sequence[str] | None = None) -> dict[str, Any]:
    """Return `machine`, `versions`, `command` (this process's own by default) and `load`, as plain values."""
    return {
        "machine": machine(),
        "versions": versions(),
        "command": shlex.join(sys.argv if command is None else command),
        "load": load(),
    }


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, cores that this process may use, memory, system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "cpu": _first(_CPUINFO, "model name") or platform.processor() or platform.machine(),
        "cores": cores,
        "memory_bytes": 1024 * int((_first(_MEMINFO, "MemTotal") or "0").split()[0]),
        "system": f"{platform.system()} {platform.machine()}",
    }


def load() -> float:
    """Return the machine's load over the last minute: numbers of a busy machine mean little."""
    return os.getloadavg()[0]


def _first(path: Path, name: str) -> str:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")
