"""What KV weighs and what moving it costs (eq. 1, 3, 4, 13, 17-22). Chunks count c = 1..C, as in the paper."""

from collections.abc import Sequence
from fractions import Fraction

from mcf.model import ModelShape

Bytes = int | Fraction
Hops = int | float | Fraction
INT4 = Fraction(1, 2)  # bytes per element


def M_token(shape: ModelShape, b: Bytes | None = None, *, scale_bytes: Bytes = 0) -> Bytes:
    """KV bytes of one token in all layers (eq. 1): 2 * L * H_kv * d * b, and what quantisation scales add.

    `b` is bytes per element (default: the shape's, its own scales with it), `scale_bytes` further bytes of scales per
    token, all layers.
    """
    elements = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    return (shape.kv_token_bytes if b is None else elements * b) + scale_bytes


def M_chunk(B: int, M_token: Bytes) -> Bytes:
    """KV bytes of a chunk of B tokens (eq. 3)."""
    return B * M_token


def h(c: int, B: int, P0: int = 0) -> int:
    """Tokens of history before chunk c; `P0` were cached before the prompt."""
    return P0 + (c - 1) * B


def B_c(c: int, B: int, S: int) -> int:
    """Tokens of chunk c of a prompt of S tokens; the last chunk may be short."""
    return max(min(B, S - (c - 1) * B), 0)


def M_hist(c: int, *, B: int, S: int, M_token: Bytes, P0: int = 0) -> Bytes:
    """KV bytes from the first to the c-th chunk, the c-th included (eq. 4)."""
    return (h(c, B, P0) + B_c(c, B, S)) * M_token


def R(c: int, C: int) -> int:
    """Chunks that may still use the block of chunk c once chunk c is done (eq. 13)."""
    return C - c


def C_rep(*, M_chunk: Bytes, r: int, h_dis: Hops = 1) -> Hops:
    """Hop-bytes of the copies of one new chunk (eq. 17): r - 1 copies of M_chunk bytes, each over h_dis links.

    Where copies are multicast, h_dis is the tree's edges per copy (`mcf.mars.tree_hops`), at most the mean distance.
    """
    return M_chunk * (r - 1) * h_dis


def C_rep_total(*, M_chunk: Bytes, r: Sequence[int], h_dis: Hops = 1) -> Hops:
    """Hop-bytes of all copies (eq. 18); r[c-1] is the factor of chunk c when it was made."""
    return sum((C_rep(M_chunk=M_chunk, r=r_c, h_dis=h_dis) for r_c in r), Fraction(0))


def C_access(*, M_chunk: Bytes, N: int, r: Sequence[int], h_near: Hops = 1) -> Hops:
    """Hop-bytes of reading at chunk c what is not held (eq. 19); r[i-1] is the factor of block i <= c at chunk c.

    The running chunk is among them: copy or not, a new block is delivered to N - 1 nodes.
    """
    return sum((M_chunk * (N - r_i) * h_near for r_i in r), Fraction(0))


def C_MARS(*, M_chunk: Bytes, N: int, r: Sequence[Sequence[int]], h_dis: Hops = 1, h_near: Hops = 1) -> Hops:
    """Hop-bytes of MARS (eq. 20); r[c-1][i-1] is the factor of block i at chunk c, i = 1..c.

    At equal hop costs it never exceeds C_ring: a new block costs N - 1 deliveries whatever its factor, an older one at
    most as many.
    """
    made = C_rep_total(M_chunk=M_chunk, r=[r_c[-1] for r_c in r], h_dis=h_dis)
    return made + sum((C_access(M_chunk=M_chunk, N=N, r=r_c, h_near=h_near) for r_c in r), Fraction(0))


def C_ring(*, M_chunk: Bytes, N: int, C: int, h_ring: int = 1) -> Bytes:
    """Hop-bytes of ring streaming (eq. 21): at each chunk every block so far makes N - 1 hops of weight h_ring."""
    return M_chunk * (N - 1) * h_ring * Fraction(C * (C + 1), 2)


def C_full(*, M_chunk: Bytes, N: int, C: int, h_dis: int = 1) -> Bytes:
    """Hop-bytes of full replication (eq. 22): every block is delivered once to every other node."""
    return M_chunk * (N - 1) * h_dis * C
