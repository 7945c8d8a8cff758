"""What a worker can do on this machine, measured: rates of arithmetic and memory, an exchange with its peers, its size.

The head asks all workers at once, so that the rates are those of this many workers together.
"""

import statistics
import time
from typing import Any

import torch

from mcf.dist.gauge import seconds_of
from mcf.dist.hf import DTYPES
from mcf.dist.linkgauge import exchange, peers_of
from mcf.dist.transport import Transport
from mcf.dist.usage import forget_peak, memory

WHAT = ("rates", "exchange", "memory", "new_peak")
_RATE_S = 0.4  # how long each rate is measured
_PRODUCT = 1024  # rows and columns of the matrix product
_READ_BYTES = 1 << 28  # more than any cache holds
_EXCHANGES = 200


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
        forget_peak()
    return memory()


def _product_rate(dtype: torch.dtype) -> float:
    a = torch.randn(_PRODUCT, _PRODUCT).to(dtype)
    return 2 * _PRODUCT**3 / seconds_of(lambda: a @ a, _RATE_S)


def _read_rate() -> float:
    a = torch.ones(_READ_BYTES // 4)
    return _READ_BYTES / seconds_of(a.sum, _RATE_S)


def _exchange_s(transport: Transport, num_bytes: int) -> float:
    if transport.world_size == 1:
        return 0.0
    mine = torch.zeros(max(1, num_bytes // 4))
    theirs = {peer: torch.empty_like(mine) for peer in peers_of(transport)}
    times = []
    for _ in range(_EXCHANGES):
        start = time.perf_counter()
        exchange(transport, mine, theirs)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
