"""What this process holds: memory, descriptors, threads. To see that nothing grows from request to request."""

import os
import threading
from pathlib import Path

from mcf.dist.pool import KvPool

_KIB = 1024


def usage() -> dict[str, int]:
    """Return bytes of KV pools and of resident memory, open descriptors, and threads; 0 where the system is silent."""
    return {
        "pool_bytes": KvPool.living_bytes(),
        "rss_bytes": memory()["rss_bytes"],
        "num_fds": _count("/proc/self/fd"),
        "num_threads": _count("/proc/self/task") or threading.active_count(),
    }


def memory() -> dict[str, int]:
    """Return the bytes of this process in memory, now and at most; 0 where the system does not tell."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    sizes = {line.partition(":")[0]: int(line.split()[1]) * _KIB for line in lines if line.endswith(" kB")}
    return {"rss_bytes": sizes.get("VmRSS", 0), "peak_rss_bytes": sizes.get("VmHWM", 0)}


def forget_peak() -> None:
    """Have later peaks count from now, where the system can do that."""
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5", encoding="ascii")  # see proc(5): sets the high-water mark to the current size


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
