"""Memory that kernels free stays with the process: counted in page faults, in processes of their own."""

import subprocess
import sys

import pytest

from mcf.dist import heap

LAYERS = """
import ctypes, resource, sys
if sys.argv[1] == "kept":
    from mcf.dist.heap import keep_freed_memory
    assert keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def layer():
    blocks = [ctypes.c_void_p(libc.malloc(4 << 20)) for _ in range(3)]
    for block in blocks:
        ctypes.memset(block, 1, 4 << 20)
    for block in blocks:
        libc.free(block)
layer(), layer()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    layer()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(name: str) -> int:
    """Page faults of twenty layers that allocate 12 MiB each."""
    done = subprocess.run([sys.executable, "-c", LAYERS, name], capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_a_layer_finds_the_memory_of_the_one_before() -> None:
    if sys.platform != "linux":
        pytest.skip("glibc alone")
    assert faults("kept") * 20 < faults("given back")


def test_other_c_libraries_keep_their_own_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not heap.keep_freed_memory()
