"""A control group with a memory limit for tests, version 2 or 1, where this machine lets us make one (root)."""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_LIMITS = {"memory.max": _ROOT, "memory.limit_in_bytes": _ROOT / "memory"}  # of version 2 and of version 1


def why_not() -> str:
    """Return what is missing for a limit; empty where nothing is."""
    try:
        with memory_limit(1 << 30):
            return ""
    except OSError as error:
        return f"a memory limit needs a control group that can be written (root): {error}"


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Callable[[int], None]]:
    """Make a group that may charge so many bytes more; yields what puts a process in. Raises OSError."""
    group, limit = _make()
    try:
        (group / limit).write_text(str(limit_bytes))
        for swap in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            with contextlib.suppress(OSError):  # the kernel may keep no account of swap
                (group / swap).write_text(str(limit_bytes if swap.startswith("memory.memsw") else 0))
        yield lambda pid: (group / "cgroup.procs").write_text(str(pid)) and None
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (group.parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def _make() -> tuple[Path, str]:
    with contextlib.suppress(OSError):
        if "memory" in (_ROOT / "cgroup.controllers").read_text().split():
            (_ROOT / "cgroup.subtree_control").write_text("+memory")
    for limit, parent in _LIMITS.items():
        group = parent / f"mcf-test-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                return group, limit
            group.rmdir()
    raise OSError("neither version can be used here")
