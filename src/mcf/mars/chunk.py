"""The chunk size (eq. 5), and the one that `auto` takes where a budget or one node asks for it, and in studies.

Runs and plans of several workers without a budget take more: `mcf.engine.planner.RUN_TOKENS`.
"""

PAGE_TOKENS = 64
AUTO_TOKENS_PER_NODE = 512  # large enough to fill a kernel, small enough that a chunk's new KV stays a small slot


def fits_buffer(*, B: int, N: int, m_l: int, M_buf: int) -> bool:
    """Say whether one layer of the KV that one node makes in a chunk of B tokens fits M_buf bytes (eq. 5)."""
    return -(-B // N) * m_l <= M_buf


def auto_chunk(
    *,
    N: int,
    S: int,
    L: int,
    m_l: int,
    S_node: int | None = None,
    M_buf: int = 0,
    max_new_tokens: int = 0,
    stream_slots: int = 2,
) -> int:
    """Choose the chunk size in tokens, over all nodes: 512 per node, halved down to a page of 64 where memory asks.

    `m_l` is the KV bytes of one token in one layer, `S_node` the smallest budget (None: no limit), `M_buf` the
    propagation buffer (0: no limit). What must fit is the owner-only layout at the last chunk. Where even a page per
    node does not fit, a page is returned, and the policy says what is missing.
    """
    t = AUTO_TOKENS_PER_NODE
    while t > PAGE_TOKENS and not _fits(t, N, S, L, m_l, S_node, M_buf, max_new_tokens, stream_slots):
        t //= 2
    return min(t * N, S)


def _fits(
    t: int, N: int, S: int, L: int, m_l: int, S_node: int | None, M_buf: int, max_new_tokens: int, slots: int
) -> bool:
    """Owner share, decode reserve, two layers of the others' KV before the last chunk, and the slots of new KV."""
    page, share = PAGE_TOKENS * m_l, _pages(-(-S // N))
    history, new = _pages((-(-S // (t * N)) - 1) * t), _pages(min(t, -(-S // N)))
    if M_buf and new * page > M_buf:
        return False
    reserve = _pages(-(-max_new_tokens // N)) + 1 if max_new_tokens else 0
    used = L * (share + reserve) + min(slots, 2) * (N - 1) * history + min(slots, N - 1) * new
    return S_node is None or used * page <= S_node


def _pages(num_tokens: int) -> int:
    return -(-num_tokens // PAGE_TOKENS)
