"""`mars-paper` under a budget, or with copies that retire early: how many copies each chunk's blocks keep.

An estimate, not the policy's own layout: the policy decides node by node and to the page, this for one typical node.
"""

import numpy as np

from mcf.mars.converge import r_converge
from mcf.mars.job import Array, Job


def squeezed_copies(j: Job, r: Array) -> tuple[Array, Array]:
    """([C, C] copies of others' blocks of chunk i that a node holds in chunk c, [C] bytes in use); r [C] by reuse.

    Eq. 11 and 16: one factor for all blocks, lowered as history grows and where copies retire before the end; a node
    that is still too full drops its youngest copies; a new block is kept where there is room.
    """
    S, size = 2**60 if j.S_node is None else j.S_node, j.pages(j.t).max(1) * j.page_bytes * j.L
    own = (j.pages(j.T[1:]) + j.reserve_pages(j.T[-1])).max(1) * j.page_bytes * j.L
    held, used, out = np.zeros(j.C), np.zeros(j.C), np.zeros((j.C, j.C))
    factor = float(j.N)
    for c in range(j.C):
        everything = float(j.S if c + 1 == j.C else (c + 1) * j.B) * j.shape.kv_token_bytes
        net = max(own[c], min(float(S - _slots(j, c, held * 0)), everything))
        factor = max(1.0, min(factor, j.N * net // everything, r_converge(c=c + 1, C=j.C, N=j.N, W=j.drain_chunks)))
        held[:c] = np.minimum(held[:c], factor - 1)
        held[:c] = _shed(j, c, held[:c], size, float(S - own[c]))
        out[c] = held
        used[c] = own[c] + _slots(j, c, held) + (held * size).sum()
        held[c] = max(0.0, min(r[c], factor, r_converge(c=c + 2, C=j.C, N=j.N, W=j.drain_chunks)) - 1)
        held[c] = min(held[c], max(S - used[c], 0) // max(size[c], 1))
        used[c] += held[c] * size[c]
        out[c, c] = held[c]
    return out, used


def _slots(j: Job, c: int, held: Array) -> float:
    """Bytes of streams in a chunk's loop: two layers of missing history, and the new blocks that come at once."""
    missing = float(((j.N - 1 - held[:c]) * j.t[:c].mean(1)).sum())
    makers = j.N - 1 if missing else 0
    pages = (missing / 64 + makers / 2) * (j.ahead + 1)
    new = min(j.stream_slots, j.N - 1) * float(j.pages(j.t[c]).max())
    return (pages + new) * j.page_bytes


def _shed(j: Job, c: int, held: Array, size: Array, room: float) -> Array:
    """Drop the youngest copies until what is held, and the slots of what is not, fit into the room."""
    out = held.copy()
    slot = j.t[:c].mean(1) / 64 * (j.ahead + 1) * j.page_bytes  # a dropped copy is streamed from then on
    over = float((out * size[:c]).sum()) + _slots(j, c, np.append(out, 0.0)) - room
    for i in range(c - 1, -1, -1):
        if over <= 0:
            break
        gain = float(size[i] - slot[i])
        if out[i] and gain > 0:
            drop = min(out[i], np.ceil(over / gain))
            out[i] -= drop
            over -= drop * gain
    return out
