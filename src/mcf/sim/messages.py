"""Messages of a send, as hardware orders and cuts them: one for each KV head, half and block of 64 tokens."""

from collections.abc import Iterator, Sequence

from mcf.schedule.packets import BLOCK_TOKENS
from mcf.schedule.schedule import Schedule
from mcf.schedule.steps import KV


def num_descriptors(sched: Schedule, row: int) -> int:
    """Orders that a node gives its network half for one layer of a send.

    One for each KV head (of KV: for its keys and its values) and row of equal blocks at equal distances.
    """
    return _num_parts(sched, row) * _num_loops(list(_blocks(sched, row)))


def num_packets(sched: Schedule, row: int, packet_bytes: float) -> int:
    """Packets of one layer of a send: of each message as many as its bytes take."""
    parts, blocks = _num_parts(sched, row), list(_blocks(sched, row))
    token = int(sched.row_bytes[row]) / max(parts * sum(tokens for _, tokens in blocks), 1)
    return parts * sum(max(int(-(-tokens * token // packet_bytes)), 1) for _, tokens in blocks)


def _num_parts(sched: Schedule, row: int) -> int:
    step = sched.step(row)
    return (step.h_hi - step.h_lo) * (2 if step.payload == KV else 1)


def _blocks(sched: Schedule, row: int) -> Iterator[tuple[int, int]]:
    """Blocks (position, tokens) of a send, in order."""
    step = sched.step(row)
    if step.payload == KV:
        chunks, makers = range(step.c_lo, min(step.c_hi, sched.meta.num_chunks)), range(step.m_lo, step.m_hi)
        spans = sorted(span for chunk in chunks for maker in makers for span in sched.spans(chunk, maker))
    else:
        spans = sorted(sched.spans(step.chunk, step.q))
    for lo, hi in spans:
        yield from ((at, min(BLOCK_TOKENS, hi - at)) for at in range(lo, hi, BLOCK_TOKENS))


def _num_loops(blocks: Sequence[tuple[int, int]]) -> int:
    """How many rows of equal blocks (position, tokens) at equal distances there are, the first as long as can be."""
    count = at = 0
    while at < len(blocks):
        count, end = count + 1, at + 1
        while end < len(blocks) and blocks[end][1] == blocks[at][1]:
            if blocks[end][0] - blocks[end - 1][0] != blocks[at + 1][0] - blocks[at][0]:
                break
            end += 1
        at = end
    return count
