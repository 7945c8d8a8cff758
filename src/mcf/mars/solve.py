"""The optimisation problem of the paper, (26)-(29), and what choosing group sizes adds to it.

Under the paper's own cost model the optimum has a closed form: fill the memory budget and stream only the overflow. No
factor r is needed for it: which blocks are held does not matter, only how many bytes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from mcf.errors import InfeasibleError
from mcf.mars.chunk import PAGE_TOKENS, fits_buffer
from mcf.mars.groups import Setting, T_group, bytes_in, new, route, sizes, stream
from mcf.mars.times import T_TTFT, Rates, T_chunk, T_comm, T_comp, T_head, n_star

NEAR = 1.01  # among group sizes that are this near to the best time, the fewest bytes win


@dataclass(frozen=True, kw_only=True)
class ChunkPlan:
    """What is decided for chunk c = 1..C: groups of g nodes, and the bytes into each node that follow, all layers.

    `resident_bytes` of history stay in a node's memory, `stream_bytes` are fetched, `new_bytes` are the chunk's own KV,
    `route_bytes` queries and states; `T` seconds.
    """

    c: int
    g: int
    resident_bytes: float
    stream_bytes: float
    new_bytes: float
    route_bytes: float
    T: float


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Chunks as decided, and what follows: `T_TTFT` seconds (eq. 23), bytes into one node, `n_star` tokens (eq. 8)."""

    setting: Setting
    chunks: tuple[ChunkPlan, ...]
    T_TTFT: float
    n_star: float

    @property
    def inbound_bytes(self) -> float:
        """Bytes into one node over the whole prefill."""
        return math.fsum(c.stream_bytes + c.new_bytes + c.route_bytes for c in self.chunks)


def solve(s: Setting, rates: Rates) -> Solution:
    """The optimum of (26)-(29) for a chunk size, in the paper's model: fetching alone, computing overlapped.

    T_c = max(T_comp, (max(0, h M_token - K_h) + (B - B/N) M_token)/(deg BW)). Raises InfeasibleError where a node has
    no room for its own share.
    """
    s.check()
    chunks = []
    for c in range(1, s.C + 1):
        B = s.B_c(c)
        comp = T_comp(s.shape, n=B / s.N, h=s.h(c), B=B, rates=rates, m_l=s.m_l)
        comm = T_comm(load=bytes_in(1, s, c), depth=0, rates=rates, deg=s.deg)
        chunks.append(_decided(1, s, c, T_chunk(T_comp=comp, T_comm=comm)))
    return _solution(s, chunks, rates)


def solve_groups(s: Setting, rates: Rates, *, near: float = NEAR, overlaps: bool = False) -> Solution:
    """MARS+: for each chunk the group size with the fewest bytes among those within `near` of the least time.

    Memoryless and O(C log N): planning again from any chunk is the same code. With `overlaps` a chunk takes the longer
    of computing and of what comes in, as in (26) and in the exact oracle of the tests; without, routing and new KV also
    stand inside their layers. Raises InfeasibleError where a node has no room for its own share.
    """
    s.check()
    cost = _overlapped if overlaps else T_group
    chunks = []
    for c in range(1, s.C + 1):
        times = {g: cost(g, s, c, rates) for g in sizes(s.N)}
        least = min(times.values())
        good = [g for g, T in times.items() if least * near >= T]
        g = min(good, key=lambda g: (bytes_in(g, s, c), times[g]))
        chunks.append(_decided(g, s, c, times[g]))
    return _solution(s, chunks, rates)


def _overlapped(g: float, s: Setting, c: int, rates: Rates) -> float:
    B = s.B_c(c)
    comp = T_comp(s.shape, n=B / s.N, h=s.h(c), B=B, rates=rates, m_l=0)
    return T_chunk(T_comp=comp, T_comm=T_comm(load=bytes_in(g, s, c), depth=0, rates=rates, deg=s.deg))


def _decided(g: int, s: Setting, c: int, T: float) -> ChunkPlan:
    B, L = s.B_c(c), s.shape.num_layers
    return ChunkPlan(
        c=c,
        g=g,
        resident_bytes=min(s.K_h(c), s.h(c) * float(s.m_t)),
        stream_bytes=stream(g, s, c),
        new_bytes=L * new(g, s, B),
        route_bytes=L * route(g, s, B),
        T=T,
    )


def _solution(s: Setting, chunks: list[ChunkPlan], rates: Rates) -> Solution:
    return Solution(
        setting=s,
        chunks=tuple(chunks),
        T_TTFT=T_TTFT(chunks=(c.T for c in chunks), head=T_head(s.shape, rates)),
        n_star=n_star(s.shape, rates=rates, deg=s.deg, m_l=s.m_l),
    )


def candidates(N: int, S: int) -> list[int]:
    """Chunk sizes to choose from, over all nodes: 64 to 4096 tokens per node, doubling, and the whole prompt."""
    doubled = (PAGE_TOKENS * 2**k * N for k in range(7))
    return sorted({*(B for B in doubled if B < S), S})


def best_chunk(s: Setting, rates: Rates, *, M_buf: int = 0, sizes: Iterable[int] | None = None) -> Solution:
    """The chunk size of the least predicted time among those whose blocks fit `M_buf` (eq. 8 replaced, 5, 28).

    `sizes` default to `candidates`; of equal times the larger chunk wins. Raises InfeasibleError where none fits.
    """
    every = candidates(s.N, s.S) if sizes is None else list(sizes)
    good = [B for B in every if not M_buf or fits_buffer(B=B, N=s.N, m_l=math.ceil(s.m_l), M_buf=M_buf)]
    if not good:
        least = math.ceil(-(-min(every) // s.N) * s.m_l)
        raise InfeasibleError(
            f"got a propagation buffer of {M_buf} bytes: the smallest chunk, {min(every)} tokens, puts {least} bytes "
            "into it; enlarge the buffer or choose smaller chunks",
            missing_bytes=least - M_buf,
        )
    return min((solve_groups(replace(s, B=B), rates) for B in good), key=lambda found: (found.T_TTFT, -found.setting.B))
