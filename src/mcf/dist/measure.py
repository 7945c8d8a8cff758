"""What a worker can do on this machine, measured: rates of arithmetic and memory, an exchange with its peers, its size.

The head asks all workers at once, so that the rates are those of this many workers together.
"""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from mcf.dist.hf import DTYPES
from mcf.dist.transport import Transport
from mcf.schedule.steps import STATE_BYTES

WHAT = ("rates", "exchange", "memory", "new_peak")
_RATE_S = 0.4  # how long each rate is measured
_PRODUCT = 1024  # rows and columns of the matrix product
_READ_BYTES = 1 << 28  # more than any cache holds
_EXCHANGES = 200
_KIB = 1024


def measure(what: str, transport: Transport, *, dtype: str, num_bytes: int) -> dict[str, Any]:
    """Return the numbers of one of `WHAT`.

    rates     `flops_s` of a matrix product in `dtype`, `read_bytes_s` of a sum over memory
    exchange  `exchange_s`: the median time to exchange `num_bytes` with all other workers, both ways at once
    memory    `rss_bytes` and `peak_rss_bytes` of this process
    new_peak  the same; later peaks count from now, where the system can do that
    """
    if what == "rates":
        return {"flops_s": _product_rate(DTYPES[dtype]), "read_bytes_s": _read_rate()}
    if what == "exchange":
        return {"exchange_s": _exchange_s(transport, num_bytes)}
    if what == "new_peak":
        _forget_peak()
    return _size()


def _product_rate(dtype: torch.dtype) -> float:
    a = torch.randn(_PRODUCT, _PRODUCT).to(dtype)
    return 2 * _PRODUCT**3 / _median_s(lambda: a @ a)


def _read_rate() -> float:
    a = torch.ones(_READ_BYTES // 4)
    return _READ_BYTES / _median_s(a.sum)


def _median_s(deed: Callable[[], object]) -> float:
    """Repeat the deed for a fixed time, so that all workers are at it together."""
    deed()
    times = [time.perf_counter()]
    while times[-1] - times[0] < _RATE_S or len(times) < 4:
        deed()
        times.append(time.perf_counter())
    return statistics.median(b - a for a, b in pairwise(times))


def _exchange_s(transport: Transport, num_bytes: int) -> float:
    peers = [peer for peer in range(transport.world_size) if peer != transport.rank]
    if not peers:
        return 0.0
    mine = torch.zeros(max(1, num_bytes // 4))
    theirs = {peer: torch.empty_like(mine) for peer in peers}
    times = []
    for _ in range(_EXCHANGES):
        start = time.perf_counter()
        handles = [transport.irecv(theirs[peer], peer, 1, STATE_BYTES) for peer in peers]
        handles += [transport.isend(mine, peer, 1, STATE_BYTES) for peer in peers]
        for handle in handles:
            handle.wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _size() -> dict[str, Any]:
    """Bytes of this process in memory, now and at most; 0 where the system does not tell."""
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    return {"rss_bytes": int(sizes.get("VmRSS", 0)) * _KIB, "peak_rss_bytes": int(sizes.get("VmHWM", 0)) * _KIB}


def _forget_peak() -> None:
    refs = Path("/proc/self/clear_refs")
    if refs.exists():
        refs.write_text("5", encoding="ascii")  # see proc(5): sets the high-water mark to the current size
