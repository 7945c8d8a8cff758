"""The C library's heap: memory that kernels free stays with the process, for the next kernel.

Layers allocate the same few megabytes again and again. By default glibc hands such blocks back to the system and asks
for them again: each page is then faulted in and zeroed anew. A feed-forward part of 1,024 rows of 576 to 1,536 took 1.3
to 1.4 times as long for it (two processes on two cores, bfloat16), and 1.1 times in float32.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_LARGEST_KEPT_BYTES = 32 << 20  # the most that glibc takes; a larger block is a mapping of its own, as weights are
_KEPT_BYTES = 256 << 20  # free memory at the heap's end beyond which it goes back to the system


def keep_freed_memory() -> bool:
    """Let this process keep what it frees, up to 256 MiB; return whether the C library does so (glibc alone)."""
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return False
    set_mmap, set_trim = (_M_MMAP_THRESHOLD, _LARGEST_KEPT_BYTES), (_M_TRIM_THRESHOLD, _KEPT_BYTES)
    return all(libc.mallopt(option, value) == 1 for option, value in (set_mmap, set_trim))
