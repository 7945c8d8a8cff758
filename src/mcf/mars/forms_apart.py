"""Closed forms of what splits the work otherwise: prefill and decode apart, and a pipeline of layers as a reference."""

import numpy as np

from mcf.mars.form import Form, kv_bytes, traffic_of
from mcf.mars.job import Array, Job


def pd(j: Job) -> Form:
    """Half the nodes prefill and keep everything; the others own the prompt's KV, handed over as it is made."""
    makers = j.N // 2
    j = j.replace(makers=makers)
    owner = _pd_owner(j, makers)
    made, blocks = j.t[:, :makers], j.pages(j.t[:, :makers])
    held = np.zeros(j.N, dtype=np.int64)
    held[:makers] = blocks.sum()
    np.add.at(held, owner, blocks)
    kv = made * kv_bytes(j)
    peers = [_edges(j, m, makers) for m in range(makers)]
    total = int((kv.sum(0) * np.array(peers)).sum() + (kv * j.hops[np.arange(makers)[None, :], owner]).sum())
    into, out = np.zeros(j.N, np.int64), np.zeros(j.N, np.int64)
    into[:makers] = kv.sum() - kv.sum(0)
    np.add.at(into, owner, kv)
    out[:makers] = kv.sum(0) * (2 if makers > 1 else 1)
    reserve = j.pages(j.generated)
    return Form(
        policy="pd",
        job=j,
        traffic=traffic_of(total),
        peak_bytes=(held + reserve) * j.page_bytes * j.L,
        into=into,
        out_of=out,
    )


def _edges(j: Job, maker: int, makers: int) -> int:
    """Links that a maker's block crosses to its peers: a tree, or ways of their own where a tree would touch others."""
    peers = [n for n in range(makers) if n != maker]
    if j.topology.is_switch:
        return len(peers)
    tree = j.topology.multicast(maker, peers)
    return len(tree) if {b for _, b in tree} <= set(peers) else int(j.hops[maker, peers].sum())


def _pd_owner(j: Job, makers: int) -> Array:
    """[C, makers] owner of each block: the makers' columns, end to end, are cut evenly at the blocks' middles."""
    made, column = j.t[:, :makers], np.maximum(j.T[-1, :makers], 1)
    twice_middle = np.minimum(j.T[:-1, :makers] + j.T[1:, :makers], 2 * column - 1)
    along = 2 * np.arange(makers) * column + twice_middle
    out: Array = makers + along * (j.N - makers) // (2 * column * makers)
    assert out.shape == made.shape
    return out


def pipeline(j: Job) -> Form:
    """Chunked pipeline parallelism: each node has L/N layers of everything; activations go from node to node."""
    hidden = j.shape.hidden_size * j.shape.act_bytes
    layers = -(-j.L // j.N)
    kept = int(j.pages(np.array([j.S + j.max_new_tokens])).sum()) * j.page_bytes * layers
    sent = np.full(j.N, j.S * hidden)
    return Form(
        policy="pipeline",
        job=j,
        traffic=traffic_of() | {"activation": j.S * hidden * (j.N - 1)},
        peak_bytes=np.full(j.N, kept),
        into=sent * (np.arange(j.N) > 0),
        out_of=sent * (np.arange(j.N) < j.N - 1),
    )
