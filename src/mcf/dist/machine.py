"""What this machine has and how much of it is left: memory, cores, disk, limits. Standard library alone.

Each reader takes the root of the file system, so that a test can hand it another machine. What a system does not tell
is None: nothing is guessed. Control groups of both versions are read, the process's own group and all above it.
"""

import os
import platform
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path("/")
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
_NO_LIMIT_BYTES = 1 << 60  # version 1 says "no limit" by a number beyond any memory
_KIB = 1024


def facts(cache: Path, root: Path = ROOT) -> dict[str, Any]:
    """Return all of it as plain values; `cache` is the folder that converted models go to."""
    return {
        "machine": _text(root / "proc/sys/kernel/random/boot_id") or platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "memory": memory(root),
        "cpu": cpu(root),
        "disk": disk(cache),
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def memory(root: Path = ROOT) -> dict[str, int | None]:
    """Bytes of memory: all, available now, swap in use, and what the tightest control group allows and has left."""
    sizes = {name: int(value.split()[0]) * _KIB for name, value in _pairs(root / "proc/meminfo", ":")}
    limit, left = None, None
    for group in _groups(root, "memory"):
        most = _limit(group, "memory.max", "memory.limit_in_bytes")
        used = _integer(group / "memory.current") or _integer(group / "memory.usage_in_bytes") or 0
        cached = dict(_pairs(group / "memory.stat", None)).get("inactive_file", "0")  # given back when asked for
        if most is not None and (left is None or most - used + int(cached) < left):
            limit, left = most, most - used + int(cached)
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return {
        "total_bytes": sizes.get("MemTotal"),
        "available_bytes": sizes.get("MemAvailable"),
        "swap_used_bytes": sizes["SwapTotal"] - sizes["SwapFree"] if "SwapTotal" in sizes else None,
        "group_limit_bytes": limit,
        "group_left_bytes": left,
        "process_limit_bytes": None if soft == resource.RLIM_INFINITY else soft,
    }


def cpu(root: Path = ROOT) -> dict[str, Any]:
    """Cores (all, this process's, by a control group's quota), instructions for bf16, frequency governor, load."""
    info = dict(_pairs(root / "proc/cpuinfo", ":"))
    flags = set(info.get("flags", info.get("Features", "")).split())
    load = (_text(root / "proc/loadavg") or "").split()
    governors = {_text(path) for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor")}
    return {
        "model": info.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 1,
        "allowed_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "quota_cores": _quota(root),
        "flags": [name for name in _FLAGS if name in flags],
        "governor": "/".join(sorted(name for name in governors if name)) or None,
        "load": float(load[0]) if load else None,
        "threads": int(os.environ["OMP_NUM_THREADS"]) if os.environ.get("OMP_NUM_THREADS", "").isdecimal() else None,
    }


def disk(folder: Path) -> dict[str, Any]:
    """Free bytes where `folder` is or would be made, and whether it can be written to."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return {
        "path": str(folder),
        "free_bytes": shutil.disk_usage(there).free,
        "is_writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
    }


def _quota(root: Path) -> float | None:
    """Cores that the tightest control group lets this process use."""
    found = []
    for group in _groups(root, "cpu"):
        both = (_text(group / "cpu.max") or "").split()
        both = both or [str(_integer(group / f"cpu.cfs_{name}_us") or -1) for name in ("quota", "period")]
        if both[0].isdecimal() and int(both[1]) > 0:
            found.append(int(both[0]) / int(both[1]))
    return min(found, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control groups that have a say in `controller`, each with all above it."""
    for line in (_text(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if names else "")
        inner = Path(path.lstrip("/"))
        yield from (top / part for part in (inner, *inner.parents) if (top / part).is_dir())


def _limit(group: Path, *names: str) -> int | None:
    found = [size for name in names if (size := _integer(group / name)) is not None and size < _NO_LIMIT_BYTES]
    return min(found, default=None)


def _integer(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.lstrip("-").isdecimal() else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _pairs(path: Path, separator: str | None) -> list[tuple[str, str]]:
    """Lines `name separator value` of a file; the first of each name counts."""
    lines = [line.split(separator, 1) for line in (_text(path) or "").splitlines()]
    both = [(parts[0].strip(), parts[1].strip()) for parts in lines if len(parts) == 2]
    return list({name: (name, value) for name, value in reversed(both)}.values())
