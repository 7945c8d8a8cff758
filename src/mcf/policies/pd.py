"""`pd`: prefill and decode on different nodes. The first half computes the prompt and hands KV over as it is made.

Of N nodes, floor(N / 2) prefill, with `full`'s dataflow among them; the rest decode, and own the prompt's KV. A prefill
node holds the KV of the whole prompt until the end of prefill. The KV of generated tokens goes round all nodes, as with
every policy: the decode template says so.
"""

from dataclasses import replace

import numpy as np

from mcf.errors import UserError
from mcf.policies.common import Trees
from mcf.policies.request import PlanRequest
from mcf.schedule import Builder, Schedule, cut, head_tail
from mcf.schedule.builder import Owners
from mcf.schedule.schedule import Array
from mcf.schedule.steps import KEEP


def plan(request: PlanRequest) -> Schedule:
    """Write the pd schedule; its meta declares the shares, which only decode nodes have.

    Raises UserError for a single node.
    """
    N = request.num_nodes
    if N < 2:
        raise UserError(
            f"got {N} node for policy pd: expected at least 2, one to prefill and one to decode; use more nodes or "
            "another policy"
        )
    makers = N // 2
    pieces = cut(request.prompt_tokens, request.chunk_tokens, makers, head_tail)
    meta = request.meta("pd")
    tokens = np.zeros((meta.num_chunks, makers), dtype=np.int64)
    np.add.at(tokens, (pieces["chunk"], pieces["node"]), pieces["hi"] - pieces["lo"])
    owner = owner_of(tokens, N - makers)
    shares = np.bincount(owner.reshape(-1), weights=tokens.reshape(-1), minlength=N)
    b = Builder(replace(meta, shares=tuple(shares.astype(int).tolist())), pieces, _cells(owner))
    trees = Trees(request.cluster.topology)
    arrivals = [[m for m in order if m < makers] for order in trees.arrivals[:makers]]
    for chunk in range(b.num_chunks):
        for node in range(makers):
            _chunk(b, node, chunk, arrivals[node], int(owner[chunk, node]), trees)
    for retire in (b.drain, b.free):
        for node in range(makers):
            retire(node, b.num_chunks, chunks=(0, b.num_chunks), makers=(0, makers))
    b.decode()
    return b.build()


def owner_of(tokens: Array, num_decode: int) -> Array:
    """[C, P] decode node that owns each block: the makers' columns, end to end, are cut into equal parts.

    `tokens` [C, P] are the tokens of each block; the decode nodes are P, P + 1, ... Shares are equal to within a block,
    each in one run of chunks per maker.
    """
    num_makers = tokens.shape[1]
    column = np.maximum(tokens.sum(0), 1)
    twice_middle = np.minimum(2 * tokens.cumsum(0) - tokens, 2 * column - 1)  # empty blocks at the end: no farther
    out: Array = num_makers + (2 * np.arange(num_makers) * column + twice_middle) * num_decode // (
        2 * column * num_makers
    )
    return out


def _cells(owner: Array) -> Owners:
    return {(chunk, maker, 0): node for (chunk, maker), node in np.ndenumerate(owner)}


def _chunk(b: Builder, node: int, chunk: int, peers: list[int], owner: int, trees: Trees) -> None:
    """Write a prefill node's rows of a chunk: its peers wait for its new block, so it goes to them first."""
    new = (chunk, chunk + 1)
    b.produce(node, chunk)
    for receivers in (*_teams(node, chunk, peers, trees), [owner]):
        route = trees.route(node, receivers, chunk)
        b.send_kv(node, receivers, chunk, chunks=new, makers=(node, node + 1), hold=KEEP, route=route)
    states = [b.attend(node, chunk, chunks=(0, chunk), makers=(0, len(peers) + 1))]
    states += [b.attend(node, chunk, chunks=new, makers=(maker, maker + 1)) for maker in (node, *peers)]
    b.merge(node, chunk, states)


def _teams(node: int, chunk: int, peers: list[int], trees: Trees) -> list[list[int]]:
    """All peers at once; one by one where a tree would leave copies with nodes on the way that decode."""
    tree = trees.topology.multicast(node, peers, tree=trees.number(node, chunk))
    return [peers] if {b for _, b in tree} <= set(peers) else [[peer] for peer in peers]
