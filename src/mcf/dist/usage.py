"""What this process holds: memory, descriptors, threads. To see that nothing grows from request to request."""

import os
import threading
from pathlib import Path

from mcf.dist.pool import KvPool

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def usage() -> dict[str, int]:
    """Return bytes of KV pools and of resident memory, open descriptors, and threads; 0 where the system is silent."""
    return {
        "pool_bytes": KvPool.living_bytes(),
        "rss_bytes": _rss_bytes(),
        "num_fds": _count("/proc/self/fd"),
        "num_threads": _count("/proc/self/task") or threading.active_count(),
    }


def _rss_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0
